// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/value_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/maximum.h>

namespace tandem::algo {

ValueLoss value_loss(const ValueLossInput& in, double range, const LossScope& scope, const Algorithm& algorithm) {
  const at::Tensor ignored_T = scope.trainable_T.to(at::kBool).logical_not();
  auto masked = [&](const at::Tensor& t_T) { return t_T.masked_fill(ignored_T, 0); };
  const at::Tensor v_T = masked(in.values_T), old_T = masked(in.old_values_T), target_T = masked(in.returns_T);
  const at::Tensor free_T = (v_T - target_T).square();
  const at::Tensor bounded_T = (v_T.clamp(old_T - range, old_T + range) - target_T).square();
  return {0.5 * aggregate(at::maximum(free_T, bounded_T), scope, algorithm), bounded_T.gt(free_T).sum(at::kDouble).item<double>()};
}

}  // namespace tandem::algo
