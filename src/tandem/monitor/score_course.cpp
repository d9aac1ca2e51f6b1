// SPDX-License-Identifier: Apache-2.0
#include "tandem/monitor/score_course.h"

#include <algorithm>

namespace tandem::monitor {
namespace {

constexpr double kStepShare = 0.2;
constexpr double kNoise = 4;  // standard errors of a step
constexpr int64_t kFirstJudged = 5;

}  // namespace

bool ScoreCourse::falls(int64_t step, double mean, double error) {
  recent = steps++ == 0 ? mean : recent + kStepShare * (mean - recent);
  if (steps < kFirstJudged) return false;
  if (steps == kFirstJudged) first = recent;
  if (steps == kFirstJudged || recent > best) best = recent, best_step = step;
  const double fall = best - recent, half = best > 0 ? best / 2 : std::max((best - first) / 2, -best / 10);
  if (fall_told || fall < half || fall <= kNoise * error) return false;
  return fall_told = true;
}

}  // namespace tandem::monitor
