// SPDX-License-Identifier: Apache-2.0
#pragma once
// An algorithm is a small difference: GRPO, DAPO and Dr.GRPO are values of one struct, and there is one training loop.

#include <string>
#include <vector>

#include "tandem/algo/correction_rule.h"
#include "tandem/algo/options.h"

namespace tandem::algo {

/// How rewards become advantages; advantage.cpp has the formula and the source of each.
enum class Advantage {
  kGrpo,
  kDrGrpo,
  kRloo,
  kReinforcePp,
  kReinforcePpBaseline,
  kRemax,
  kOpo,
  kGpg,
  kGrpoPassK,
  kGae,
  kDistillation,
};

/// What the policy loss of a token is; surrogate.cpp has the formula and the source of each.
enum class Surrogate { kClip, kGspo, kCispo, kSapo, kGmpo };

/// Estimators of KL(current || reference) from one sample, d = logprob - reference (Schulman, "Approximating KL
/// Divergence"). A straight-through one keeps the value and takes the gradient of k2, whose expectation is right.
enum class KlEstimator { kK1, kAbs, kK2, kK3, kK1Straight, kK3Straight };

/// What the loss of a step is a mean of.
enum class Aggregation { kTokenMean, kTokenSum, kSequenceMeanTokenMean, kSequenceMeanTokenSum, kSequenceMeanTokenSumNorm };

/// The ratio may move in [1 - low, 1 + high]. Where the advantage is negative the loss is at most -advantage * dual.
struct ClipRange {
  double low = 0.2;
  double high = 0.2;
  double dual = 0;  ///< off at 0
};

/// How soft SAPO's gate is, by the sign of the advantage.
struct Temperatures {
  double positive = 1;
  double negative = 1.05;
};

/// Optimizer updates on one batch: the groups in order, cut into `mini_batches`, `epochs` times over.
struct Updates {
  int64_t mini_batches = 1;
  int64_t epochs = 1;
  double max_kl = 0;  ///< no further update on the batch once old is so far from the current policy; off at 0

  bool several() const { return mini_batches > 1 || epochs > 1; }
};

struct Algorithm {
  Advantage advantage = Advantage::kGrpo;
  double std_eps = 1e-6;
  double gamma = 1;   ///< of the rewards to go
  double lambda = 1;  ///< of GAE
  bool whitens = false;        ///< advantages get mean 0 and variance 1 over the tokens of the batch
  double whiten_floor = 0;     ///< whitening divides by at least this share of usual_deviation; off at 0
  double usual_deviation = 0;  ///< of advantages before they are whitened: the median of the run's last batches; 0 before the first
  Surrogate surrogate = Surrogate::kClip;
  ClipRange clip;
  Temperatures sapo;
  double kl_coef = 0;  ///< at 0 no reference model is needed, but by distillation
  bool kl_in_reward = false;  ///< a token is rewarded with -kl_coef times that of the policy before; else current's is in the loss
  KlEstimator kl_estimator = KlEstimator::kK3;
  double kl_cut = 0;  ///< k3: most that a token's estimate counts, without a gradient there; off at 0
  Aggregation aggregation = Aggregation::kSequenceMeanTokenMean;
  double entropy_coef = 0;  ///< of the entropy that the loss takes off
  bool kl_weighted = false;  ///< times current / behavior, which makes up for samples of another policy
  Correction correction;
  double off_policy_delta = 0;  ///< correction.h:on_policy_mask leaves tokens out above it; off at 0
  bool mask_truncated = false;  ///< responses cut at the length limit are compared, but not trained on
  Updates updates;
  double scale_tokens = 1;  ///< what kSequenceMeanTokenSumNorm divides by besides the sequences

  bool needs_reference() const { return kl_coef != 0 || advantage == Advantage::kDistillation; }
  bool has_kl_loss() const { return kl_coef != 0 && !kl_in_reward; }
  /// Whether tokens have rewards beside the score of their response.
  bool rewards_tokens() const { return kl_in_reward || advantage == Advantage::kDistillation; }
  bool needs_critic() const { return advantage == Advantage::kGae; }
};

/// What the word auto of `correction` may come to: no correction, token weights, or those with a mask of off-policy sequences.
enum class Corrects { kNot, kByWeights, kByWeightsAndMask };
Options resolved_correction(Options options, Corrects how);
/// A correction of auto is none. Errors: UserError for an unknown word.
Algorithm algorithm_of(const Options& options);

}  // namespace tandem::algo
