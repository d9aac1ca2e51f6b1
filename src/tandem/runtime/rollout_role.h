// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rollout role: starts as many groups as the staleness rule lets it, generates, has them scored beside generation, and
// puts them into the queue.
//
//   takes     prompts, in stream order      waits for  nothing but its TP peers and, each round, the exchange of heads
//   gives     scored groups to the queue    woken by   the loop of the run

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tandem/queue/sample_queue.h"
#include "tandem/reward/scorer.h"
#include "tandem/rollout/group_assembly.h"
#include "tandem/rollout/weight_switch.h"
#include "tandem/runtime/context.h"
#include "tandem/runtime/session/batch_rows.h"
#include "tandem/runtime/session/prompt_stream.h"

namespace tandem::runtime {

struct RolloutParts {
  const model::ModelConfig& config;
  const model::Decoder* decoder;   ///< null: this rank keeps the queue, and does not generate
  const text::Tokenizer& tokenizer;
  const PromptStream& prompts;
  const reward::Rule* reward;      ///< null: groups go to the queue without scores
  queue::SampleQueue& queue;
  BatchRows& bodies;
  int64_t max_context_tokens;   ///< of training and of evaluation
};

/// Threads    one per rank; every rank's role makes the same calls, so that their queues stay equal.
/// Errors     UserError for a prompt or a reward that fails, naming it; the queue keeps what it had. PeerError if a reward
///            takes longer than schedule.take_timeout_s while nothing else is left to do.
class RolloutRole {
 public:
  RolloutRole(RankContext& context, const RolloutParts& parts);

  /// Generates until the queue can form a batch. False if the run was asked to stop. Collective.
  bool run_until_batch();
  /// Where others train meanwhile: goes on until the next batch could be formed or the staleness rule stops it. Collective over the ranks
  /// that generate.
  void run_ahead();
  /// Those that trained hear what run_ahead() started and finished. Collective.
  void tell_ahead();
  /// On a token boundary: `move` writes the new weights, without a version meanwhile; unfinished sequences go on under them. Collective.
  void switch_weights(const std::function<void()>& move, const rollout::NewWeights& weights);
  /// rollout/engine.h:Engine::release_memory
  void release_memory();
  /// After release_memory(), of the weights it had.
  void regain_memory(const rollout::NewWeights& weights);
  /// Whether it has a KV cache.
  bool has_memory() const { return engine_ && engine_->num_blocks() > 0; }
  /// Forgets groups that the queue evicted.
  void cancel(const std::vector<data::GroupId>& groups);

  /// The next position of the prompt stream, for the checkpoint.
  int64_t next_group() const { return next_group_; }
  /// Continues the stream at `next_group`; groups in `again` were running when the state was saved and start first.
  void restore(int64_t next_group, std::vector<data::GroupId> again);
  /// Groups that wait for their first token, on any rank. Collective.
  std::vector<data::GroupId> without_token();
  /// Tokens drawn since the last call, over all ranks. Collective.
  double take_num_tokens();
  /// Seconds of run_ahead() since the last call, the most of any rank; 0 without it. Collective.
  double take_ahead_s();
  /// Groups that run_ahead() finished since the last call, on all ranks.
  int64_t take_num_ahead() { return std::exchange(num_ahead_, 0); }
  /// The engine, if nothing runs in it: evaluation then needs no second cache.
  rollout::Engine* idle_engine() { return engine_ && !engine_->running() ? &*engine_ : nullptr; }

 private:
  void start_groups();
  void start_next();
  void run_round(comm::Group& peers);
  void generate();
  std::vector<data::Group> graded();
  void start(data::GroupId id);
  bool may_go_on(comm::Group& peers);
  bool running() const { return engine_ && engine_->running(); }

  RankContext& context_;
  RolloutParts parts_;
  std::optional<rollout::Engine> engine_;  // where this rank generates
  std::optional<rollout::GroupAssembly> groups_;  // of its sequences
  std::optional<reward::Scorer> scorer_;  // where there is a rule
  std::vector<data::Group> unscored_;     // where there is none: groups for the queue
  std::vector<int32_t> stop_ids_;
  rollout::StopMatcherFactory stop_matchers_;
  std::vector<data::GroupId> again_;
  int64_t next_group_ = 0;
  int64_t num_tokens_told_ = 0;
  std::vector<data::Group> ahead_;   // finished by this rank since the others heard
  int64_t num_started_ahead_ = 0, num_ahead_ = 0;
  double ahead_s_ = 0;
  bool generating_ = false;      // the last round, here or on a rank that shares experts
  double waiting_since_s_ = 0;   // for grades alone; 0: not waiting
};

}  // namespace tandem::runtime
