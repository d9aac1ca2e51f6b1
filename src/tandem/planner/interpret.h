// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state machine of a schedule: events go in, what may start comes out. It holds no clock, thread or communicator. Each rank of a run
// drives one of its own (runtime/rl_run.cpp:run).
//
//   Interpreter machine(schedule, {1, steps}, rank);
//   while (!machine.done())
//     for (StageRun run : machine.may_start()) {
//       machine.start(run);
//       ...                      // the work
//       machine.end(run);        // or machine.repeat(run)
//     }
//
// Each rank runs its stages in one order, step by step and in the order of the list. So the order of stages on each communicator is a
// function of the schedule alone; an event only delays. All ranks follow one such order, so none waits in a circle.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tandem/planner/schedule.h"

namespace tandem::planner {

/// A stage of one step.
struct StageRun {
  int stage = 0;
  int64_t step = 0;
  bool operator==(const StageRun&) const = default;
};

struct Steps {
  int64_t first = 1, last = 0;  ///< inclusive; none if last < first
};

/// Ownership  copies the schedule.
/// Threads    one.
/// Errors     as check(); InternalError for an event that may not happen: a start too early, an end without a start.
class Interpreter {
 public:
  /// Of all ranks, as a simulator drives it. With `rank`, of what that rank does: an edge to a stage it has no part in counts as
  /// satisfied, for the stage itself meets the ranks that wait for it.
  Interpreter(Schedule schedule, Steps steps, std::optional<int> rank = {});

  /// What may start now, in the order of the list. Of one rank: at most one stage.
  std::vector<StageRun> may_start() const;
  /// Notes that the stage runs, and that it has ended; the work is the caller's.
  void start(StageRun run);
  void end(StageRun run);
  /// Instead of end(), for the last stage of the schedule's repeat: its stages are to run again in this step. The schedule says how often.
  void repeat(StageRun run);
  /// Whether every stage of every step has ended.
  bool done() const;
  /// Whether all stages of the step have ended.
  bool done_with(int64_t step) const;

  const Stage& stage(StageRun run) const { return schedule_.stages[static_cast<size_t>(run.stage)]; }

 private:
  bool takes_part(int stage) const;                         // true of every stage if it is for all ranks
  bool is_next(int stage) const;                            // its ranks are idle, and have done what stands before it
  bool edges_ended(int stage, int64_t step) const;          // but for edges to stages that it takes no part in

  const Schedule schedule_;
  const Steps steps_;
  const std::optional<int> rank_;
  std::vector<int64_t> ended_;   // by stage: the last step of which it ended
  std::vector<bool> running_;    // by stage
  int64_t num_repeated_ = 0;     // in the step of the schedule's repeat that is under way
};

/// The first `steps` steps as ranks would go through them if each stage took as long as the others, and what each stage waits for.
std::string timeline(const Schedule& schedule, int64_t steps);

}  // namespace tandem::planner
