// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the batches of a run come from: rollout and its queue (rollout_role.h), workers (worker_source.cpp), or an earlier run
// (replay.cpp). stage/stages.cpp calls it as `roles.source`.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/config/config.h"
#include "tandem/data/sample.h"
#include "tandem/monitor/recorder.h"
#include "tandem/policy/actor.h"
#include "tandem/rollout/engine.h"
#include "tandem/runtime/folder/step_failed.h"
#include "tandem/runtime/sample/batch_rows.h"
#include "tandem/runtime/sample/early_passes.h"
#include "tandem/serve/prompt_stream.h"

namespace tandem::runtime {

class Generation;

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
  /// then next_batch gives another, of which the others keep their scores. True where who generates has scored. Errors: StepFailed if too
  /// many were replaced; there is no batch then.
  virtual bool accept(const data::Batch& scored) { return (void)scored, true; }
  /// Groups that are finished and in no batch, whose bodies are in the world. The same on all ranks from next_batch to commit.
  virtual std::vector<data::GroupId> beyond_batch() const { return {}; }
  /// The batch of next_batch, if there is one, will not be trained: state() then has its groups as before.
  virtual void give_back(const data::Batch& batch) = 0;
  /// The stage planner::StageKind::kAhead, on the ranks that generate, if there are any.
  virtual void run_ahead() {}
  /// After run_ahead(): the other ranks hear of it.
  virtual void meet() {}
  /// The update of `step` led to `after`. Returns the groups that left untrained: they would now be too old, or were filtered.
  /// The stage `switch` calls it before switch_weights.
  virtual std::vector<data::GroupId> commit(data::StepId step, data::PolicyVersion after) = 0;
  /// `send` moves the weights of training to the rollout's (policy/actor.h:send_weights). rollout/engine.h has the order.
  virtual void switch_weights(const rollout::SendWeights& send, data::PolicyVersion version) = 0;
  /// Behind it: the checksum of those weights, as rollout runs them here.
  virtual void know_weights(data::PolicyVersion version, uint64_t checksum) { (void)version, (void)checksum; }
  /// What draws the samples; null where they come from another run, and their versions say nothing of this run's weights.
  virtual Generation* generation() { return nullptr; }
  /// What a clock decided since the last call, as lines of decisions.jsonl; "" on all ranks but the first, and if nothing. Collective.
  virtual std::string take_decisions() { return ""; }
  /// Metrics of a step that is over; stage/step_record.h calls it.
  virtual void record(monitor::Recorder& recorder) = 0;
  virtual SourceState state() = 0;
  /// Errors: UserError if the queue is of another version, or knows later groups; PeerError if its bytes are damaged.
  virtual void restore(SourceState state) = 0;
};

/// The samples of an earlier run, step by step: `tandem run --replay`. Errors: UserError if that run has fewer steps than this one.
std::unique_ptr<SampleSource> make_replay(const std::string& run_dir, int64_t steps, const policy::Ranks& ranks, BatchRows& bodies,
                                          StopRequested stop);

struct WorkerParts {
  const config::RunConfig& config;
  const policy::Ranks& ranks;
  const policy::Actor& actor;
  const serve::PromptStream& prompts;  ///< asked by another thread, on the first rank; by nobody else meanwhile
  BatchRows& bodies;
  bool tells_answers;                  ///< workers need right answers to score by
  EarlyPasses* early;                  ///< where the stages after rollout begin before a batch is complete; else null
  std::string model_dir;               ///< of the start
  int64_t max_context_tokens;
  StopRequested stop;
  std::function<void(int64_t samples, int64_t tokens)> tell;  ///< hears, again and again, what a batch has by now; may be empty
};
/// Workers, which are no ranks (worker/worker.h). They reach the run by a door on the first rank (worker/door.h); every rank publishes the
/// weights that it has for them. Collective. Errors: StepFailed where no worker comes for workers.wait_s, and for a reward that failed
/// with one; the queue keeps what it had.
std::unique_ptr<SampleSource> make_worker_source(const WorkerParts& parts);

}  // namespace tandem::runtime
