// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every schedule that a run can have.

#include <vector>

#include "tandem/planner/schedule.h"

namespace tandem::planner::test {

inline std::vector<ScheduleNeeds> all_needs() {
  std::vector<ScheduleNeeds> all;
  for (int bits = 0; bits < 32; ++bits)
    for (int64_t staleness : {0, 1, 2})
      for (PlacementKind kind : {PlacementKind::kColocated, PlacementKind::kFullyColocated, PlacementKind::kSplit}) {
        const auto bit = [&](int i) { return (bits >> i & 1) != 0; };
        const int side = kind == PlacementKind::kSplit ? 2 : 4;
        all.push_back({placement_of(kind, side, side), staleness, bit(0), bit(1), bit(2), bit(3), bit(4)});
      }
  return all;
}

}  // namespace tandem::planner::test
