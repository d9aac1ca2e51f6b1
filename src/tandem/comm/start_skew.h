// SPDX-License-Identifier: Apache-2.0
#pragma once
// How far apart the ranks start a stage: what a dispatcher would cost, and what ranks that run the same schedule do not pay.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tandem/base/clock.h"
#include "tandem/comm/group.h"

namespace tandem::comm {

/// Seconds to add to `clock` here to have that of rank 0, by the quickest of several questions: off by half their time at most.
/// Collective.
double measured_clock_offset_s(Group& world, const std::function<double()>& clock);

/// The same for now_s(); 0 where all ranks run under one kernel, which has one monotonic clock. Collective.
double clock_offset_s(Group& world);

/// Threads    one per rank.
class StartSkew {
 public:
  /// Collective.
  explicit StartSkew(Group& world) : world_(world), offset_s_(clock_offset_s(world)) {}

  /// A stage starts here and now, at `at_s` by now_s(). The same stages in the same order on every rank.
  void starts(const std::string& stage, double at_s);
  /// Between the first and the last rank, of the stages since the last call: the metrics time/start_skew_<stage>_s for each,
  /// time/start_skew_s for the most. Collective.
  std::map<std::string, double> take_metrics();
  /// To be added to now_s() here, for that of rank 0.
  double offset_s() const { return offset_s_; }

 private:
  Group& world_;
  const double offset_s_;
  std::vector<std::string> stages_;
  std::vector<double> starts_s_;  // by the clock of rank 0
};

/// Of the kernel that runs this process, another for each start of a machine; empty where it does not say. Threads: any.
std::string kernel_id();

}  // namespace tandem::comm
