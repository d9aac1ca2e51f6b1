// SPDX-License-Identifier: Apache-2.0
#pragma once
// StaleSync's rule as pure functions: which groups may start, be taken, be dropped or waited for. The bound they keep, that
// no group is trained more than S updates after its first token, is proved in docs/design/staleness.md.
//
//   version        counts optimizer updates
//   lag            version before the update that trains a group - version at the group's first token
//   outstanding    started and neither evicted nor trained by a committed update

#include <cstdint>
#include <span>

namespace tandem::queue {

enum class LagPolicy { kDrop, kWait };

struct Rule {
  int64_t groups_per_step = 1;  ///< B
  int64_t staleness = 0;        ///< S
  LagPolicy policy = LagPolicy::kDrop;

  int64_t max_outstanding() const { return (staleness + 1) * groups_per_step; }
};

/// How many more groups may start: outstanding < (S + 1) * B must hold before each start.
inline int64_t num_may_start(const Rule& rule, int64_t num_outstanding) {
  return num_outstanding < rule.max_outstanding() ? rule.max_outstanding() - num_outstanding : 0;
}

/// True if a group that started at `start` would have too large a lag in the update from `version` on.
inline bool too_stale(const Rule& rule, int64_t start, int64_t version) { return version - start > rule.staleness; }

/// The condition of `wait`: after the update from `version` to `version` + 1 the groups that remain can all still be
/// trained in time. `remaining_starts` are the start versions of the groups that would then be outstanding, in any order;
/// for every j >= 0 at most (j + 1) * B of them may have start <= version + 1 - S + j.
bool may_take(const Rule& rule, int64_t version, std::span<const int64_t> remaining_starts);

/// AReaL's capacity (StalenessManager): how many rollouts may be submitted now. Here for comparison and its oracle; StaleSync
/// counts groups until the update that trains them is committed, AReaL samples since the start of the run.
struct Capacity {
  int64_t max_concurrent, batch_size, max_staleness;
  int64_t operator()(int64_t version, int64_t running, int64_t accepted) const;
  int64_t pending_limit() const { return (max_staleness + 1) * batch_size; }
};

}  // namespace tandem::queue
