// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a step's tokens are spread over the experts, and the update of the correction bias that follows from it.
//
// L sparse layers, E experts, T tokens, R of them counted, X = L * experts per token.

#include <ATen/core/Tensor.h>

#include "tandem/comm/group.h"
#include "tandem/model/parameters.h"

namespace tandem::train {

/// Threads    one.
class RouterLoad {
 public:
  explicit RouterLoad(const model::ModelConfig& config);

  /// Adds the experts of the rows, where this rank has them. routes: int16, model::TokenBatch::recorded_routes_TX or
  /// replayed_routes_TX; rows: int64.
  void count(const at::Tensor& routes_TX, const at::Tensor& rows_R);
  /// Adds what another one has counted.
  void add(const RouterLoad& other) { counts_LE_.add_(other.counts_LE_); }
  /// Over ranks that count different tokens and layers. Collective.
  void sum_over(comm::Group& world) { world.all_reduce(counts_LE_, comm::ReduceOp::kSum); }

  /// fp32: counts / counted tokens * E / k, which is 1 everywhere for an even load (DeepSeek-AI, DeepSeek-V3, eq. 18).
  at::Tensor relative_LE() const;
  /// The largest of these.
  double most() const { return relative_LE().max().item<double>(); }

 private:
  int64_t choices_;
  at::Tensor counts_LE_;  // fp64
};

/// Adds rate * sign(mean load - load) to each expert's correction bias, where this rank has it (DeepSeek-AI, DeepSeek-V3, section 2.1.2).
void update_bias(const model::ModelConfig& config, const model::ModelParameters& parameters, const RouterLoad& load, double rate);

}  // namespace tandem::train
