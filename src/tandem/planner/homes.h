// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which replica of the rollout generates a group: its home.

#include <cstdint>
#include <map>

#include "tandem/base/ids.h"
#include "tandem/model/layout.h"
#include "tandem/planner/placement.h"

namespace tandem::planner {

/// A replica on ranks that train, too: what it did while it generated last, and how long it stands for training.
struct Turns {
  double open_s = 0, shut_s = 0;
  int64_t drawn = 0;  ///< tokens
};
/// Whether a group that it leaves unfinished had better go on elsewhere: computing its tokens anew, prompts included, takes less than the
/// replica stands. A token computed anew takes no longer than one that is drawn. False where nothing was measured yet.
bool is_better_moved(const Turns& turns, int64_t tokens);

/// Threads    one; the same calls on every rank give the same homes.
class Homes {
 public:
  Homes(const Placement& placement, const model::Layout& rollout) : placement_(placement), rollout_(rollout) {}

  /// Where groups go that go round.
  int64_t round(GroupId group) const { return value(group) % rollout_.dp; }
  /// The replica with the fewest unfinished groups, the first of them; of those alone that never train, if `beside_training`.
  int64_t least_busy(bool beside_training) const;

  void set(GroupId group, int64_t replica) { homes_[group] = {replica, true}; }
  /// As set() said, else where it goes round.
  int64_t of(GroupId group) const;
  bool is_unfinished(GroupId group) const;
  /// It costs its replica nothing more; known or not.
  void finish(GroupId group);
  void forget(GroupId group) { homes_.erase(group); }

 private:
  struct Home {
    int64_t replica;
    bool is_unfinished;
  };

  const Placement placement_;
  const model::Layout rollout_;
  std::map<GroupId, Home> homes_;
};

}  // namespace tandem::planner
