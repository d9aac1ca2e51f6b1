// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which ranks train and which generate.

#include <string>

namespace tandem::planner {

enum class PlacementKind {
  kColocated,       ///< every rank does both, in turns
  kFullyColocated,  ///< so, and the reference and the reward model are on the device during their own stages alone
  kSplit,           ///< the first ranks train, the others generate; weights are sent
  kMixed,           ///< the first ranks train and generate in turns, the others always generate
};

/// [first, first + count)
struct RankRange {
  int first = 0, count = 0;
  bool has(int rank) const { return rank >= first && rank < first + count; }
  bool overlaps(const RankRange& other) const { return first < other.first + other.count && other.first < first + count; }
};

struct Placement {
  PlacementKind kind = PlacementKind::kColocated;
  RankRange train, rollout;

  /// Ranks that generate and never train. None unless split or mixed.
  RankRange generators() const { return {train.first + train.count, rollout.first + rollout.count - train.first - train.count}; }
  /// Whether there are such ranks, beside those that train.
  bool has_sides() const { return generators().count > 0; }
};

/// For logs: " on ranks 0 to 3".
std::string to_text(const RankRange& ranks);
/// Of layouts with so many ranks; split: one after the other, else over each other, from the first rank on.
Placement placement_of(PlacementKind kind, int train_ranks, int rollout_ranks);
/// From colocated, fully_colocated, split or mixed. Errors: UserError naming `where`.
PlacementKind parse_placement(const std::string& name, const std::string& where);

}  // namespace tandem::planner
