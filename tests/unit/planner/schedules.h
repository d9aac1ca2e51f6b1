// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every schedule that a run can have.

#include <vector>

#include "tandem/planner/schedule.h"

namespace tandem::planner::test {

inline std::vector<ScheduleNeeds> all_needs() {
  std::vector<ScheduleNeeds> all;
  for (int bits = 0; bits < 128; ++bits)
    for (int64_t staleness : {0, 1, 2})
      for (PlacementKind kind : {PlacementKind::kColocated, PlacementKind::kFullyColocated, PlacementKind::kSplit, PlacementKind::kMixed}) {
        const auto bit = [&](int i) { return (bits >> i & 1) != 0; };
        const int train = kind == PlacementKind::kSplit || kind == PlacementKind::kMixed ? 2 : 4;
        if (bit(2) && !bit(1)) continue;  // rewards by log-probabilities need a reference
        all.push_back({.placement = placement_of(kind, train, kind == PlacementKind::kSplit ? 2 : 4),
                       .staleness = staleness,
                       .replay = bit(0),
                       .reference = bit(1),
                       .rewards_read_logprobs = bit(2),
                       .old_logprob = bit(3),
                       .reward_stage = bit(4),
                       .critic = bit(5),
                       .start_is_reference = bit(6)});
      }
  return all;
}

}  // namespace tandem::planner::test
