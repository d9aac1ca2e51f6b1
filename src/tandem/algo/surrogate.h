// SPDX-License-Identifier: Apache-2.0
#pragma once
// The published forms of the policy gradient's loss, each a function of how far a token's probability moved and of its advantage.
// T = packed tokens of one micro-batch

#include <ATen/core/Tensor.h>

#include "tandem/algo/algorithm.h"
#include "tandem/algo/sequences.h"

namespace tandem::algo {

struct SurrogateInput {
  at::Tensor logprobs_T;    // carries the gradient; 0 where a token is not trainable, like the next two
  at::Tensor log_ratio_T;   // logprobs - old, not clamped; carries the gradient
  at::Tensor advantages_T;
  const Sequences& sequences;
};

struct TokenLoss {
  at::Tensor loss_T;          ///< with gradient; not yet corrected or aggregated
  at::Tensor clipped_T;       ///< bool: tokens that the clip range holds back
  at::Tensor clipped_dual_T;  ///< bool: tokens that the bound for negative advantages holds back
  at::Tensor ratio_T;         ///< what stands for the probability ratio, detached
  at::Tensor log_ratio_T;     ///< of the tokens, within the bounds that the loss sets, detached
};

/// By the surrogate of `algorithm`; kGmpo is none of them, for its loss is a sequence's.
TokenLoss token_loss(const SurrogateInput& in, const Algorithm& algorithm);

/// Geometric-mean policy optimisation (Zhao et al. 2025): log ratios are clipped against the advantage, their mean makes one ratio of a
/// sequence. loss_T has a sequence's loss on each of its tokens, divided by their number: a sum over T is one over sequences.
TokenLoss geometric_mean_loss(const SurrogateInput& in, const at::Tensor& correction_T, const Algorithm& algorithm);

}  // namespace tandem::algo
