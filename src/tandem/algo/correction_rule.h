// SPDX-License-Identifier: Apache-2.0
#pragma once
// What makes up for training on samples of another policy, as a value: bounds of importance weights, and rules that leave tokens out.
// l = old - behavior, the log ratio of the policy that trains to the one that sampled.

#include <limits>
#include <string>
#include <vector>

namespace tandem::algo {

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

}  // namespace tandem::algo
