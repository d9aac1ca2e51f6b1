// SPDX-License-Identifier: Apache-2.0
#pragma once
// What makes up for training on samples of another policy: importance weights, and tokens that are left out.
// T = packed tokens, S = sequences; l = old - behavior, the log ratio of the policy that trains to the one that sampled.

#include <ATen/core/Tensor.h>

#include <limits>
#include <string>
#include <vector>

namespace tandem::algo {

class Sequences;

/// Which ratio a token's weight is: its own, the product over its sequence, or that product's geometric mean.
enum class WeightLevel { kNone, kToken, kSequence, kSequenceMean };

/// What becomes of a weight outside the bounds: the bound (TIS), or 0 (IcePop).
enum class Outside { kTruncate, kZero };

/// A rule that leaves tokens out, by how far the two policies are apart (MIS). A token's distance is k1 = -l, k2 = l^2 / 2 or
/// k3 = exp(l) - 1 - l; k1 is compared with the logarithms of both bounds, the others with the upper bound alone.
struct Rejection {
  enum class Distance { kK1, kK2, kK3 } distance = Distance::kK1;
  enum class Level { kToken, kSequenceSum, kSequenceMean, kSequenceMax } level = Level::kToken;
  double lower = 0;
  double upper = std::numeric_limits<double>::infinity();
};

struct Correction {
  WeightLevel level = WeightLevel::kNone;
  Outside outside = Outside::kTruncate;
  double lower = 0;
  double upper = std::numeric_limits<double>::infinity();
  bool normalize = false;             ///< divides the weights by their mean over the batch
  std::vector<Rejection> rejections;  ///< all must agree to keep a token

  bool active() const { return level != WeightLevel::kNone || !rejections.empty(); }
};

/// "token_k1,seq_mean_k3" with bounds "0.5_2.0,0.05", one for each. One number u bounds k1 by 1/u and u.
/// Errors: UserError that names `where`.
std::vector<Rejection> rejections_of(const std::string& rules, const std::string& bounds, const std::string& where);

/// A sum over the batch, part by part.
struct WeightSum {
  double sum = 0;
  double count = 0;
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

/// log-probability under a policy between the one that sampled and the current one, linear in versions: that of current - 1.
/// AReaL's approximation of the proximal policy (Fu et al. 2025); no pass over the batch is needed.
at::Tensor loglinear_proximal(const at::Tensor& behavior_T, const at::Tensor& current_T, const at::Tensor& version_T,
                              int64_t current_version);

/// Off-policy sequence masking (DeepSeek-V3.2): false on the tokens with a negative advantage of a sequence whose mean of
/// old - current is above `delta`.
at::Tensor on_policy_mask(const at::Tensor& current_T, const at::Tensor& old_T, const at::Tensor& advantages_T,
                          const Sequences& sequences, double delta);

}  // namespace tandem::algo
