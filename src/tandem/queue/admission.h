// SPDX-License-Identifier: Apache-2.0
#pragma once
// StaleSync's staleness rule as pure functions: which groups may start, be taken, be dropped or waited for. The bound they keep, that
// no group is trained more than S updates after its first token, is proved in docs/design/staleness.md.
// sample_queue.h asks them; they know no other rank.
//
//   version        counts optimizer updates
//   lag            version before the update that trains a group - version at the group's first token
//   outstanding    started and neither evicted nor trained by a committed update

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "tandem/base/ids.h"

namespace tandem::queue {

enum class LagPolicy { kDrop, kWait };

struct StalenessRule {
  int64_t groups_per_step = 1;  ///< B
  int64_t staleness = 0;        ///< S
  LagPolicy policy = LagPolicy::kDrop;

  int64_t max_outstanding() const { return (staleness + 1) * groups_per_step; }
};

struct Outstanding {
  GroupId id;
  int64_t start;     ///< version at its first token
  bool finished;     ///< it could be trained now
};

/// How many more groups may start at version `start` while the trainer is at `version` >= start. Before each, outstanding is below
/// (S + 1) * B. A generator behind the trainer gets fewer: none that could not be trained in time, so that `wait` could not take it and
/// `drop` would drop it.
int64_t num_may_start(const StalenessRule& rule, int64_t version, int64_t start, std::span<const Outstanding> groups);
/// The same of as many outstanding groups as `starts` has for each version at which they start.
using Starts = std::map<int64_t, int64_t>;
int64_t num_may_start_beside(const StalenessRule& rule, int64_t version, int64_t start, const Starts& starts);

struct Choice {
  std::vector<GroupId> batch;     ///< B finished groups by id, or none
  std::vector<GroupId> wait_for;  ///< under `wait`, if B are finished but may not be taken: the running groups they wait for
};
/// What the update from `version` trains: the finished groups of the earliest start, then id. `wait` looks at what then remains:
/// for every j >= 0, at most (j + 1) * B groups with start <= version + 1 - S + j. Else it gives no batch.
Choice choose_batch(const StalenessRule& rule, int64_t version, std::span<const Outstanding> groups);

/// Under `drop` the groups, finished or not, that the update from `version` would train with a lag over S. By id.
std::vector<GroupId> too_stale(const StalenessRule& rule, int64_t version, std::span<const Outstanding> groups);

}  // namespace tandem::queue
