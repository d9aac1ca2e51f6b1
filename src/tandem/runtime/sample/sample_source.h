// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the batches of a run come from: rollout and its queue (rollout_role.h), or an earlier run (replay.h). stage/stages.cpp calls it as
// `roles.source`.

#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/config/config.h"
#include "tandem/data/sample.h"
#include "tandem/monitor/notices.h"
#include "tandem/monitor/recorder.h"
#include "tandem/queue/sample_queue.h"
#include "tandem/rollout/engine.h"
#include "tandem/runtime/folder/step_failed.h"

namespace tandem::runtime {

class Generation;

/// What the queue of a run takes.
queue::Takes takes(const config::RunConfig& config);
/// Whether so many groups were replaced for one batch that the run ends. Errors of the other: StepFailed if so.
bool filters_too_many(int64_t num_filtered, const config::RunConfig& config);
void check_filtered(int64_t num_filtered, const config::RunConfig& config);
/// Whether any rank was asked to stop; notices of failures that wait on ranks are said. Errors: StepFailed where one has a `fault`.
/// Collective.
bool stop_agreed(comm::Group& world, monitor::Notices& notices, const StopRequested& stop, const std::exception_ptr& fault);

/// What a checkpoint keeps of a source.
struct SourceState {
  int64_t next_group = 0;         ///< position of the prompt stream
  std::vector<std::byte> queue;   ///< of queue::SampleQueue::state, on rank 0; empty where there is none
  int64_t version = 0;            ///< for restore(): the policy version that the queue must be of
};

/// Threads    one per rank; all ranks make the same calls, which are collective over the world. run_ahead() is for the ranks that generate,
///            and collective over their side.
class SampleSource {
 public:
  virtual ~SampleSource() = default;

  /// The batch of `step`, whose update starts from `version`; nullopt if the run was asked to stop. Errors: StepFailed if too
  /// many groups were replaced, or a reward failed; there is no batch then.
  virtual std::optional<data::Batch> next_batch(data::StepId step, data::PolicyVersion version) = 0;
  /// Where a stage scores the batch and groups without spread are replaced: the batch of next_batch, scored. False if it lost groups;
  /// then next_batch gives another, of which the others keep their scores. Errors: StepFailed if too many were
  /// replaced; there is no batch then.
  virtual bool accept(const data::Batch& scored) = 0;
  /// The batch of next_batch, if there is one, will not be trained: state() then has its groups as before.
  virtual void give_back(const data::Batch& batch) = 0;
  /// The stage planner::StageKind::kAhead, on the ranks that generate.
  virtual void run_ahead() = 0;
  /// After run_ahead(): the other ranks hear of it.
  virtual void meet() = 0;
  /// The update of `step` led to `after`. Returns the groups that left untrained: they would now be too old, or were filtered.
  /// The stage `switch` calls it before switch_weights.
  virtual std::vector<data::GroupId> commit(data::StepId step, data::PolicyVersion after) = 0;
  /// `send` moves the weights of training to the rollout's (policy/actor.h:send_weights). rollout/engine.h has the order.
  virtual void switch_weights(const rollout::SendWeights& send, data::PolicyVersion version) = 0;
  /// What draws the samples; null where they come from another run, and their versions say nothing of this run's weights.
  virtual Generation* generation() = 0;
  /// What a clock decided since the last call, as lines of decisions.jsonl; "" on all ranks but the first, and if nothing. Collective.
  virtual std::string take_decisions() { return ""; }
  /// Metrics of a step that is over; stage/step_record.h calls it.
  virtual void record(monitor::Recorder& recorder) = 0;
  virtual SourceState state() = 0;
  /// Errors: UserError if the queue is of another version, or knows later groups; PeerError if its bytes are damaged.
  virtual void restore(SourceState state) = 0;
};

}  // namespace tandem::runtime
