// SPDX-License-Identifier: Apache-2.0
#include "tandem/train/router_load.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "tandem/base/check.h"

namespace tandem::train {

RouterLoad::RouterLoad(const model::ModelConfig& config) : choices_(config.moe.experts_per_token) {
  int64_t layers = 0;
  for (int64_t i = 0; i < config.num_layers; ++i) layers += config.is_sparse(i);
  counts_LE_ = at::zeros({layers, config.moe.num_experts}, at::kDouble);
}

void RouterLoad::count(const at::Tensor& routes, const at::Tensor& rows) {
  const int64_t X = routes.size(1), E = counts_LE_.size(1);
  const int16_t* route = routes.data_ptr<int16_t>();
  const int64_t* row = rows.data_ptr<int64_t>();
  double* counts = counts_LE_.data_ptr<double>();
  for (int64_t r = 0; r < rows.numel(); ++r)
    for (int64_t x = 0; x < X; ++x) {
      const int64_t expert = route[row[r] * X + x];
      TANDEM_CHECK(expert >= 0 && expert < E, "a counted token has no route");
      counts[x / choices_ * E + expert] += 1;
    }
}

void RouterLoad::sum_over(comm::Group& dp, comm::Group& tp) {
  dp.all_reduce(counts_LE_, comm::ReduceOp::kSum);
  if (tp.size() > 1) tp.broadcast(counts_LE_, 0);
}

at::Tensor RouterLoad::relative_LE() const {
  const at::Tensor mean = counts_LE_.mean(1, true);
  return (counts_LE_ / mean).to(at::kFloat);
}

void update_bias(const model::ModelParameters& parameters, const RouterLoad& load, double rate) {
  const at::Tensor step_LE = (1 - load.relative_LE()).sign() * rate;
  int64_t sparse = 0;
  for (const model::LayerParameters& layer : parameters.layers) {
    if (!layer.router.value.defined()) continue;
    at::Tensor bias = layer.router_bias.value;
    bias.add_(step_LE[sparse++]);
  }
}

}  // namespace tandem::train
