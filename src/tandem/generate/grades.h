// SPDX-License-Identifier: Apache-2.0
#pragma once
// The grades of the groups that one rank generated. A rule that fails does so on one rank: what it said is kept here until all ranks meet
// and end together.

#include <exception>
#include <utility>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/reward/scorer.h"

namespace tandem::generate {

/// Ownership  owns the scorer; uses the rule.
/// Threads    one.
/// Errors     none: fault() has what failed. From then on nothing is collected.
class Grades {
 public:
  /// `timeout_s` bounds the wait for grades while nothing else is left to do.
  Grades(const reward::Rule& rule, const reward::Grading& grading, double timeout_s);

  void submit(data::Group&& group) { scorer_.submit(std::move(group)); }
  /// What is graded, after a moment: a short one while this rank is `generating`. `waits` says that it has nothing else to wait for.
  std::vector<data::Group> collect(bool generating, bool waits);
  /// Groups that are out.
  int64_t num_pending() const { return static_cast<int64_t>(scorer_.num_pending()); }
  bool pending() const { return num_pending() > 0; }
  /// What ended the grading; null if nothing did.
  const std::exception_ptr& fault() const { return fault_; }
  /// Seconds in collect() since the last call.
  double take_seconds() { return std::exchange(seconds_, 0); }

 private:
  void check_wait(bool waits, double begin_s);

  const reward::Rule& rule_;
  reward::Scorer scorer_;
  const double timeout_s_;
  std::exception_ptr fault_;
  double seconds_ = 0;
  double waiting_since_s_ = 0;  // for grades alone; 0: not waiting
};

}  // namespace tandem::generate
