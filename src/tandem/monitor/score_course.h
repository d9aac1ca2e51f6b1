// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace tandem::monitor {

/// The mean score of the last few steps, and the best it has been.
struct ScoreCourse {
  int64_t steps = 0;
  double recent = 0;                 ///< each step counts a fifth
  double first = 0;                  ///< of `recent`, at the fifth step
  double best = 0;                   ///< of `recent`, from the fifth step on
  int64_t best_step = 0;
  bool fall_told = false;

  /// A step whose scores have this mean, with its standard error. True once a run: where `recent` has fallen to half of its best, by more
  /// than noise; where the best is not above 0, by half of what was gained, and by a tenth of the best.
  bool falls(int64_t step, double mean, double error);
};

}  // namespace tandem::monitor
