// SPDX-License-Identifier: Apache-2.0
#pragma once
// A weight of the KL term that steers towards a target.

#include <algorithm>

namespace tandem::algo {

/// Ziegler et al. 2019: the weight grows by at most 20 % of the share of the horizon that a step was.
struct AdaptiveKl {
  double coef;
  double target;
  double horizon;  ///< in samples

  void update(double kl, double num_samples) { coef *= 1 + std::clamp(kl / target - 1, -0.2, 0.2) * num_samples / horizon; }
};

}  // namespace tandem::algo
