// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rollout role: starts as many groups as the staleness rule lets it, generates, has them scored beside generation, and
// puts them into the queue.
//
//   takes     prompts, in stream order      waits for  the engine's peers and, each round, the exchange of heads
//   gives     scored groups to the queue    called by  stage/stages.cpp, through SampleSource
//
// A round (run_round): the engine draws some tokens; groups that have their scores by then go to all peers, as heads. Each peer puts them
// into its own queue. next_batch goes through rounds in the world, run_ahead in the side of the ranks that generate. In a free run
// (RunConfig::is_free) the engine draws on a thread of its own; a round then takes what has ended by now. Between rounds of next_batch
// ranks that only train may make early passes; those that generate run ahead meanwhile.

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "tandem/data/decisions.h"
#include "tandem/generate/grades.h"
#include "tandem/policy/compute.h"
#include "tandem/queue/sample_queue.h"
#include "tandem/runtime/sample/batch_rows.h"
#include "tandem/runtime/sample/early_passes.h"
#include "tandem/runtime/sample/generation.h"
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
  std::shared_ptr<const generate::Environment> environment;  ///< of episodes, where this rank talks to it
  planner::Homes& homes;
  BatchRows& bodies;
  int64_t max_context_tokens;        ///< of training and of evaluation
  bool runs_ahead;                   ///< the schedule has a stage for it
  StopRequested stop;
  std::function<int64_t(data::SampleId)> most_tokens;  ///< stage/stages.h:Hooks
  std::function<void(int64_t samples, int64_t tokens)> tell;  ///< hears, again and again, what a batch has by now; may be empty
  std::function<void(int64_t tokens, double seconds)> stepped;  ///< stage/stages.h:Hooks
  const data::DecisionReader* followed = nullptr;            ///< of the free run that this one repeats
  EarlyPasses* early = nullptr;                              ///< where the stages after rollout begin before a batch is complete
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
  std::vector<data::GroupId> beyond_batch() const override { return queue_.finished(); }
  void give_back(const data::Batch& batch) override;
  void run_ahead() override;
  void meet() override;
  std::vector<data::GroupId> commit(data::StepId step, data::PolicyVersion after) override;
  void switch_weights(const rollout::SendWeights& send, data::PolicyVersion version) override {
    generation_.switch_weights(send, version);
  }
  Generation* generation() override { return &generation_; }
  std::string take_decisions() override;
  void record(monitor::Recorder& recorder) override;
  SourceState state() override;
  /// Groups that were running when the state was saved start first.
  void restore(SourceState state) override;

 private:
  void start_groups(bool beside_training);
  void start(int64_t home);
  void settle(data::GroupId id, int64_t home, std::vector<data::Sample> begun);
  void run_round(comm::Group& peers);
  void close_streams();
  void work_early();
  void hand_to_graders(std::vector<data::Group> ended);

  RolloutParts parts_;
  queue::SampleQueue queue_;
  Generation generation_;
  std::optional<generate::Grades> grades_;           // where there is a rule
  std::set<data::GroupId> scoring_;        // of this rank's groups, those that graders have
  std::vector<data::Group> unscored_;      // where a stage scores: groups for the queue
  std::vector<data::GroupId> again_;
  int64_t next_group_ = 0;
  int64_t num_tokens_told_ = 0, num_filtered_told_ = 0, num_preemptions_told_ = 0;
  // Since the ranks that only train heard of it; then since the last record.
  std::vector<data::Group> ahead_, filtered_;
  std::vector<int64_t> started_ahead_;   // replicas
  int64_t num_ahead_ = 0, num_moved_ = 0;
  double ahead_s_ = 0;
  data::DecisionLog decisions_;                  // in a free run
};

}  // namespace tandem::runtime
