// SPDX-License-Identifier: Apache-2.0
#pragma once
// What makes up for training on samples of another policy: importance weights, and tokens that are left out.
// T = packed tokens, S = sequences; l = old - behavior, the log ratio of the policy that trains to the one that sampled.

#include <ATen/core/Tensor.h>

#include "tandem/algo/correction_rule.h"

namespace tandem::algo {

class Sequences;

/// A sum over the batch, part by part.
struct WeightSum {
  double sum = 0;
  double count = 0;

  /// The order in which the numbers travel.
  void each(auto&& visit) { visit(sum), visit(count); }
};

/// Over the tokens that were trainable before.
struct CorrectionSums {
  double weight = 0;
  double outside = 0;         ///< tokens whose weight was outside the bounds
  double rejected = 0;        ///< tokens that a rule left out
  double kl = 0, chi2 = 0;    ///< -l; exp(2 l) - 1
  double weight_max = 0;
};

struct Corrected {
  at::Tensor weights_T;    ///< 1 with WeightLevel::kNone; 0 where a token was not trainable before
  at::Tensor trainable_T;  ///< bool: what is left
  WeightSum weights;       ///< over tokens, or over sequences, that were trainable before; for normalize()
  CorrectionSums sums;
};

/// Of one part of the batch, not yet normalised. No gradient.
Corrected correct(const at::Tensor& old_T, const at::Tensor& behavior_T, const at::Tensor& trainable_T, const at::Tensor& offsets_S,
                  const Correction& correction);

/// Divides by the mean over the whole batch.
void normalize(Corrected& part, const WeightSum& batch);

/// log-probability under a policy between the one that sampled and the current one, linear in versions: that of current - 1. `behind_T`
/// says how many versions the current one is ahead. AReaL's approximation of the proximal policy (Fu et al. 2025); no pass over the
/// batch is needed.
at::Tensor loglinear_proximal(const at::Tensor& behavior_T, const at::Tensor& current_T, const at::Tensor& behind_T);

/// Off-policy sequence masking (DeepSeek-V3.2): false on the tokens with a negative advantage of a sequence whose mean of
/// old - current is above `delta`.
at::Tensor on_policy_mask(const at::Tensor& current_T, const at::Tensor& old_T, const at::Tensor& advantages_T,
                          const Sequences& sequences, double delta);

}  // namespace tandem::algo
