// SPDX-License-Identifier: Apache-2.0
#pragma once
// The clipped policy gradient and the KL term, with the sums that become a step's metrics.
// T = packed response tokens of one micro-batch, S = its sequences

#include <ATen/core/Tensor.h>

#include "tandem/algo/aggregate.h"
#include "tandem/algo/algorithm.h"

namespace tandem::algo {

struct PolicyLossInput {
  at::Tensor logprobs_T;      // current policy; carries the gradient
  at::Tensor old_T;           // policy before this update (proximal); may be the detached current one
  at::Tensor behavior_T;      // policy that sampled the tokens
  at::Tensor correction_T;    // detached importance weight, 1 where none
  at::Tensor advantages_T;
  at::Tensor trainable_T;     // false on prompt, padding and tool output
  at::Tensor offsets_S;       // where each sequence starts in T
  double global_tokens;       // trainable tokens of the whole step, over all ranks
  double global_sequences;
};

/// Sums over trainable tokens. add() joins micro-batches; between ranks reduce sums by kSum and ratio_max by kMax.
struct LossSums {
  double tokens = 0;
  double clipped = 0;           ///< tokens whose ratio the clip range cut
  double clipped_dual = 0;      ///< tokens the dual clip cut
  double kl_old = 0;            ///< k1 of old against current: sum of old - current
  double ratio_max = 0;

  void add(const LossSums& other);
};

struct PolicyLoss {
  at::Tensor loss;  ///< scalar with gradient; this micro-batch's share of the step's loss
  LossSums sums;
};

/// The loss that the algorithm's surrogate makes of each token, times its correction, summed over T and divided by the algorithm's global
/// denominator (GMPO: by sequences). So splitting into micro-batches changes the gradient only by rounding. behavior_T enters only the
/// metrics.
PolicyLoss policy_loss(const PolicyLossInput& in, const Algorithm& algorithm);

struct KlPenalty {
  at::Tensor loss;  ///< scalar with gradient: kl_coef times the aggregated estimate
  double sum = 0;   ///< sum of the estimates over trainable tokens, for the metric
};

/// The algorithm's KL term against the reference policy. `ratio_T`, if given, is current / sampling policy: each estimate is multiplied by
/// it, which makes up for samples of another policy.
KlPenalty kl_penalty(const at::Tensor& logprobs_T, const at::Tensor& reference_T, const LossScope& scope, const Algorithm& algorithm,
                     const at::Tensor& ratio_T = {});

/// One estimate per token. k3 grows as its tangent where reference - logprob is above 3. A `cut` above 0 bounds it instead, and there it
/// has no gradient.
at::Tensor kl_estimate(const at::Tensor& logprobs_T, const at::Tensor& reference_T, KlEstimator estimator, double cut);

}  // namespace tandem::algo
