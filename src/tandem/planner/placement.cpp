// SPDX-License-Identifier: Apache-2.0
#include "tandem/planner/placement.h"

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::planner {

std::string to_text(const RankRange& ranks) {
  if (ranks.count == 1) return join_text(" on rank ", ranks.first);
  return join_text(" on ranks ", ranks.first, " to ", ranks.first + ranks.count - 1);
}

Placement placement_of(PlacementKind kind, int train_ranks, int rollout_ranks) {
  return {kind, {0, train_ranks}, {kind == PlacementKind::kSplit ? train_ranks : 0, rollout_ranks}};
}

PlacementKind parse_placement(const std::string& name, const std::string& where) {
  if (name == "colocated") return PlacementKind::kColocated;
  if (name == "fully_colocated") return PlacementKind::kFullyColocated;
  if (name == "split") return PlacementKind::kSplit;
  if (name == "mixed") return PlacementKind::kMixed;
  throw UserError(where, "is '" + name + "'", "colocated, fully_colocated, split or mixed");
}

}  // namespace tandem::planner
