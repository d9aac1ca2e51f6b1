// SPDX-License-Identifier: Apache-2.0
#pragma once
// An algorithm is a small difference: GRPO, DAPO and Dr.GRPO are values of one struct, and there is one training loop.

#include <string>
#include <vector>

#include "tandem/algo/options.h"

namespace tandem::algo {

/// How scores of a group become advantages.
enum class Advantage { kGrpo, kDrGrpo };  // (s - mean) / (std + eps); s - mean

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

struct Algorithm {
  Advantage advantage = Advantage::kGrpo;
  double std_eps = 1e-6;
  ClipRange clip;
  double kl_coef = 0;  ///< at 0 no reference model is needed
  KlEstimator kl_estimator = KlEstimator::kK3;
  Aggregation aggregation = Aggregation::kSequenceMeanTokenMean;
  double scale_tokens = 1;  ///< what kSequenceMeanTokenSumNorm divides by besides the sequences

  bool needs_reference() const { return kl_coef != 0; }
};

/// Errors: UserError for an unknown word.
Algorithm algorithm_of(const Options& options);

/// The words of the configuration, also those of the oracles ("k3+", "seq-mean-token-sum"). Errors: UserError.
KlEstimator kl_estimator_of(const std::string& word);
Aggregation aggregation_of(const std::string& word);

}  // namespace tandem::algo
