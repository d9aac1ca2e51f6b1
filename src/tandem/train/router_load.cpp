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
      TANDEM_CHECK(expert < E, "a route to expert ", expert);
      if (expert >= 0) counts[x / choices_ * E + expert] += 1;
    }
}

at::Tensor RouterLoad::relative_LE() const {
  const at::Tensor mean = counts_LE_.mean(1, true);
  return (counts_LE_ / mean).to(at::kFloat);
}

void update_bias(const model::ModelConfig& config, const model::ModelParameters& parameters, const RouterLoad& load, double rate) {
  const at::Tensor step_LE = (1 - load.relative_LE()).sign() * rate;
  int64_t sparse = 0;
  for (size_t i = 0; i < parameters.layers.size(); ++i) {
    if (!config.is_sparse(static_cast<int64_t>(i))) continue;
    at::Tensor bias = parameters.layers[i].router_bias.value;
    if (bias.defined()) bias.add_(step_LE[sparse].to(bias.device()));
    ++sparse;
  }
}

}  // namespace tandem::train
