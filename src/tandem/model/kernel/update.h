// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an optimizer step does to flat ranges of a model.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tandem::model::kernel {

/// The numbers of an AdamW step: Loshchilov and Hutter, Decoupled Weight Decay Regularization, algorithm 2.
struct AdamStep {
  double grad_scale = 1;  ///< clipping
  double lr, beta1, beta2, eps, weight_decay;
  int64_t step;           ///< the first is 1
};
/// Flat, of one length.
struct AdamTensors {
  at::Tensor master;  ///< fp32 parameters
  at::Tensor rounded; ///< the same in the compute dtype; undefined where that is fp32
  at::Tensor grad;    ///< fp32
  at::Tensor m, v;    ///< fp32
};

struct UpdateKernels {
  void (*adamw)(const AdamTensors& tensors, const AdamStep& step);
  /// sums[i] += the sum of squares of the fp32 values, over the divisor; sums are fp64. The order of the sum is fixed.
  void (*add_squares)(const at::Tensor& x, double divisor, at::Tensor& sums, int64_t i);
};

}  // namespace tandem::model::kernel
