// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rollout role: starts as many groups as the staleness rule lets it, generates, has them scored beside generation, and
// puts them into the queue.
//
//   takes     prompts, in stream order      waits for  the engine's peers and, each round, the exchange of heads
//   gives     scored groups to the queue    called by  stage/stages.cpp, through SampleSource
//
// A round (run_round): the engine draws some tokens; groups that have their scores by then go to all peers, as heads. Each peer puts them
// into its own queue. next_batch goes through rounds in the world, run_ahead in the side of the ranks that generate. Under
// RunConfig::is_free the engine draws on a thread of its own (rollout/stream.h); a round then takes what has ended by now.

#include <memory>
#include <optional>
#include <vector>

#include "tandem/policy/compute.h"
#include "tandem/queue/sample_queue.h"
#include "tandem/rollout/group_assembly.h"
#include "tandem/rollout/stream.h"
#include "tandem/runtime/sample/batch_rows.h"
#include "tandem/runtime/sample/grades.h"
#include "tandem/runtime/sample/sample_source.h"
#include "tandem/serve/prompt_stream.h"

namespace tandem::runtime {

struct RolloutParts {
  const config::RunConfig& config;
  const policy::Ranks& ranks;
  policy::Memory& memory;
  monitor::Recorder& recorder;
  const model::ModelConfig& model;
  const model::Decoder* decoder;     ///< null: this rank keeps the queue, and does not generate
  const text::Tokenizer& tokenizer;
  const serve::PromptStream& prompts;
  const reward::Rule* reward;        ///< null: a stage scores, or another rank of this one's replica
  BatchRows& bodies;
  int64_t max_context_tokens;        ///< of training and of evaluation
  bool runs_ahead;                   ///< the schedule has a stage for it
  StopRequested stop;
  std::function<int64_t(data::SampleId)> most_tokens;  ///< stage/stages.h:Hooks
  std::function<void(int64_t samples, int64_t tokens)> tell;  ///< hears, again and again, what a batch has by now; may be empty
};

/// Ownership  owns queue, engine and scorer.
/// Threads    one per rank; every rank's role makes the same calls, so that their queues stay equal.
/// Errors     StepFailed for a reward that fails on any rank, naming it, or takes longer than schedule.take_timeout_s while nothing else is
///            left to do; the queue keeps what it had.
class RolloutRole final : public SampleSource {
 public:
  explicit RolloutRole(const RolloutParts& parts);

  std::optional<data::Batch> next_batch(data::StepId step, data::PolicyVersion version) override;
  bool accept(const data::Batch& scored) override;
  void give_back(const data::Batch& batch) override;
  bool samples_are_own() const override { return true; }
  void run_ahead() override;
  void meet() override;
  std::vector<data::GroupId> commit(data::StepId step, data::PolicyVersion after) override;
  void switch_weights(const std::function<void()>& send, const rollout::NewWeights& weights) override;
  void record(monitor::Recorder& recorder) override;
  void pause() override;
  void resume() override;
  std::optional<double> take_idle_s() override;
  SourceState state() override;
  /// Groups that were running when the state was saved start first.
  void restore(SourceState state) override;

  /// Null where this rank does not generate. Not to be touched while a stream uses it: between pause() and resume().
  rollout::Engine* engine() { return engine_ ? &*engine_ : nullptr; }

 private:
  void start_groups();
  void start_next();
  void start(data::GroupId id);
  void follow(int64_t num_started, std::vector<data::Group> heads);
  void run_round(comm::Group& peers);
  void generate();
  void await_stream();
  bool await_trained(comm::Group& peers);
  void keep(data::Group group);
  rollout::EngineCounts counts() const;
  std::vector<queue::Waiting> waiting(data::PolicyVersion after) const;
  bool may_go_on(comm::Group& peers) const;
  bool running() const { return stream_ ? stream_->busy() : engine_ && engine_->running(); }

  RolloutParts parts_;
  queue::SampleQueue queue_;
  std::optional<rollout::Engine> engine_;  // where this rank generates
  std::optional<rollout::GroupAssembly> groups_;  // of its sequences; where there is no stream
  std::optional<rollout::Stream> stream_;  // under RunConfig::is_free
  bool is_paused_ = false;
  double idle_told_s_ = 0;
  std::optional<Grades> grades_;           // where there is a rule
  std::vector<data::Group> unscored_;      // where a stage scores: groups for the queue
  std::vector<int32_t> stop_ids_;
  rollout::StopMatcherFactory stop_matchers_;
  std::vector<data::GroupId> again_;
  int64_t next_group_ = 0;
  int64_t num_tokens_told_ = 0, num_filtered_told_ = 0;
  // Of the stage `ahead`, since the others heard of it; then since the last record.
  std::vector<data::Group> ahead_, filtered_;
  int64_t num_started_ahead_ = 0, num_ahead_ = 0;
  double ahead_s_ = 0;
  bool generating_ = false;      // the last round, here or on a rank that shares experts
};

}  // namespace tandem::runtime
