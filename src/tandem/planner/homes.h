// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which replica of the rollout generates a group: its home.

#include <cstdint>
#include <map>

#include "tandem/base/ids.h"
#include "tandem/model/layout.h"
#include "tandem/planner/placement.h"

namespace tandem::planner {

/// The turns of a replica on ranks that train, too: how fast it draws, and how long it stands for training. Times are of any one clock.
class Turns {
 public:
  void open(double now_s);
  /// It drew so many tokens meanwhile. A turn without one tells nothing of how fast it is.
  void close(double now_s, int64_t drawn);
  double closed_s() const { return closed_s_; }
  /// Whether a group of so many tokens, prompts included, that it leaves unfinished had better go on elsewhere: computing them anew takes
  /// less than the replica stood last. A token computed anew takes no longer than one that is drawn. False until both were measured.
  bool is_better_moved(int64_t tokens) const { return token_s_ > 0 && token_s_ * static_cast<double>(tokens) < stood_s_; }

 private:
  double opened_s_ = 0, closed_s_ = 0;  // the latter 0: it never did
  double token_s_ = 0, stood_s_ = 0;
};

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
