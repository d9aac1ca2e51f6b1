// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums over a micro-batch divided by counts of the whole step: splitting a step differently changes only the rounding.
// T = packed tokens of one micro-batch, S = its sequences

#include <ATen/core/Tensor.h>

#include "tandem/algo/algorithm.h"

namespace tandem::algo {

/// Which tokens count, which sequence each belongs to, and the counts of the whole step over all ranks.
struct LossScope {
  at::Tensor trainable_T;     // false on prompt, padding and tool output
  at::Tensor offsets_S;       // int64: where each sequence starts in T
  double global_tokens;       // trainable tokens of the step
  double global_sequences;    // sequences of the step that have any
};

/// This micro-batch's share of the step's loss, a scalar. The shares of all micro-batches and ranks add up to the loss.
/// Values outside trainable_T are ignored, even if they are NaN (their gradient is 0 then, if they are leaves).
at::Tensor aggregate(const at::Tensor& values_T, const LossScope& scope, const Algorithm& algorithm);

/// Sequence index of each token. int64.
at::Tensor sequence_of_token(const at::Tensor& offsets_S, int64_t num_tokens);

}  // namespace tandem::algo
