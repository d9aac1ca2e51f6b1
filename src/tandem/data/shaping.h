// SPDX-License-Identifier: Apache-2.0
#pragma once
// What becomes of a score before samples are compared. A sample keeps its raw score: metrics and samples.sqlite tell that one.

#include <algorithm>
#include <limits>

#include "tandem/data/sample.h"

namespace tandem::data {

/// scale * score, within [low, high]: TRL's PPO has both, in this order (score_scaling, score_clip).
struct Shaping {
  double scale = 1;
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();

  double of(double score) const { return std::min(std::max(scale * score, low), high); }  // NaN stays NaN
};

/// Whether a group teaches nothing: its samples compare alike with each other, and with a greedy answer if it has one.
inline bool compares_alike(const Group& group, const Shaping& shaping) {
  const double first = shaping.of(group.greedy ? group.greedy->score : group.samples.front().score);
  return std::ranges::all_of(group.samples, [&](const Sample& sample) { return shaping.of(sample.score) == first; });
}

}  // namespace tandem::data
