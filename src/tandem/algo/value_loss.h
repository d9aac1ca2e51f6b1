// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a critic minimises. T = packed tokens of one micro-batch

#include <ATen/core/Tensor.h>

#include "tandem/algo/aggregate.h"

namespace tandem::algo {

struct ValueLossInput {
  at::Tensor values_T;      // of the critic; carries the gradient
  at::Tensor old_values_T;  // of the critic before this step
  at::Tensor returns_T;
};

struct ValueLoss {
  at::Tensor loss;     ///< scalar with gradient; this micro-batch's share of the step's loss
  double clipped = 0;  ///< trainable tokens whose clipped value has the larger error
};

/// 0.5 max((v - R)^2, (clip(v, old +- range) - R)^2), aggregated as the policy loss is (Schulman et al. 2017's code; verl).
ValueLoss value_loss(const ValueLossInput& in, double range, const LossScope& scope, const Algorithm& algorithm);

}  // namespace tandem::algo
