// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/kl_control.h"

#include <algorithm>

namespace tandem::algo {

void AdaptiveKl::update(double kl, double num_samples) {
  coef *= 1 + std::clamp(kl / target - 1, -0.2, 0.2) * num_samples / horizon;
}

}  // namespace tandem::algo
