// SPDX-License-Identifier: Apache-2.0
#pragma once
// A failure after which a run ends saved. Stages and sources raise it where the last concluded step is whole; the loops of rl_run.cpp and
// supervised_run.cpp save that step and end with `ended`.

#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/comm/group.h"
#include "tandem/config/config.h"
#include "tandem/monitor/notices.h"
#include "tandem/queue/sample_queue.h"

namespace tandem::runtime {

/// Every rank of the stage throws it at the same point, with the same words.
class StepFailed : public std::runtime_error {
 public:
  /// `exit_code` is base/error.h:exit_code_of of what failed.
  StepFailed(int exit_code, const std::string& what) : std::runtime_error(what), exit_code(exit_code) {}
  int exit_code;
};

/// If some rank brings a fault, all throw StepFailed with that of the lowest such rank. Collective.
void fail_alike(comm::Group& group, const std::exception_ptr& fault);
/// Runs `work`; a UserError of it on any rank is StepFailed on all. Other errors pass. Collective; what is collective within `work`
/// must end alike by itself.
void fail_alike(comm::Group& group, const std::function<void()>& work);

/// Says what `waiting` of any process has of failures, on the first rank: of each kind once. Collective.
void tell_notices(comm::Group& world, monitor::Notices& ours, const std::vector<monitor::Notice>& waiting);

/// What the queue of a run takes.
queue::Takes takes(const config::RunConfig& config);
/// Whether so many groups were replaced for one batch that the run ends. Errors of the other: StepFailed if so.
bool filters_too_many(int64_t num_filtered, const config::RunConfig& config);
void check_filtered(int64_t num_filtered, const config::RunConfig& config);
/// Whether any rank was asked to stop; notices of failures that wait on ranks are said. Errors: StepFailed where one has a `fault`.
/// Collective.
bool stop_agreed(comm::Group& world, monitor::Notices& notices, const StopRequested& stop, const std::exception_ptr& fault);

/// Saves by `save` and ends the run: it throws a UserError or a PeerError that says what failed, which step is saved, and how to go on.
/// Where `save` fails, too, the error says so. `step` is the last concluded one.
[[noreturn]] void end_saved(const StepFailed& failed, int64_t step, const std::function<void()>& save);

}  // namespace tandem::runtime
