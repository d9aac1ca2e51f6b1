// SPDX-License-Identifier: Apache-2.0
#pragma once
// One rank of an RL run: interprets the schedule, step by step.
//
//   rollout    prompts -> groups -> scores -> queue      until a batch is ready
//   reward     scores of a reward model                  placement fully_colocated; else beside generation
//   reference  log-probabilities under the reference     if the loss has a KL term
//   advantage  scores -> advantages
//   train      loss, gradient, one optimizer update
//   switch     the new weights go to the rollout         equal layouts: nothing moves

#include <memory>
#include <optional>
#include <vector>

#include "tandem/comm/start_skew.h"
#include "tandem/planner/schedule.h"
#include "tandem/runtime/actor.h"
#include "tandem/runtime/folder/run_folder.h"
#include "tandem/runtime/folder/run_state.h"
#include "tandem/runtime/offload/residency.h"
#include "tandem/runtime/progress.h"
#include "tandem/runtime/reward_model/staged_reward.h"
#include "tandem/runtime/rollout_role.h"
#include "tandem/runtime/session/evaluation.h"

namespace tandem::runtime {

/// Everything about the samples of one step, between the stages.
struct StepData {
  data::Batch batch;                             ///< heads: their bodies are in BatchRows
  std::vector<train::Row> rows;                  ///< one per sample, groups in order; those of `mine` read the bodies in place
  std::vector<double> advantages;                ///< one per sample
  std::vector<int> owners;                       ///< the data-parallel rank that trains a row
  std::vector<size_t> mine;                      ///< rows this one trains
  train::StepReport report;
  std::vector<std::vector<float>> logprobs;      ///< of all rows, before the update; on rank 0
  double begin_s = 0;
};

/// Threads    one per rank; all ranks make the same calls.
/// Errors     as run_rl.
/// Read next  rollout_role.h, actor.h, run_state.h
class RlRun {
 public:
  /// `folder` is null on all ranks but the first. `model_dir` is where the run starts.
  RlRun(const RunRequest& request, RankContext& context, RunFolder* folder, const std::string& model_dir);

  RunSummary run();

 private:
  void load_reference();
  void load_reward_model();
  void may_leave(planner::Resident what, device::Swappable& memory);
  std::vector<double> model_scores(size_t num_samples, const std::vector<size_t>& mine, std::span<const reward::Answer> answers);
  void reward_scores(StepData& step);
  void restore_or_start();
  void enter(const planner::Stage& stage);
  rollout::NewWeights rollout_weights() const;
  int64_t longest_context() const;  // prompt and response, of training and evaluation
  bool run_stage(const planner::Stage& stage, StepData& step);
  void take_batch(StepData& step);
  /// Errors: UserError if the sample has none, or those of another model.
  std::span<const int16_t> routes_of(const data::Sample& sample, const data::Group& group) const;
  void restore_queue();
  void deal_rows(StepData& step);
  void make_rows(StepData& step);
  void reference_logprobs(StepData& step);
  void old_logprobs(StepData& step);
  void advantages(StepData& step);
  void update(StepData& step);
  bool overlaps() const;  // split: rollout goes on while the others train
  void meet(StepData& step);
  void move_weights();
  void switch_weights(StepData& step);
  void finish_step(StepData& step);
  void conclude_step();
  void record_samples(const StepData& step);
  std::vector<data::Group> answers_of_rank();
  void score_answers(std::vector<data::Group>& answers);
  std::optional<EvalSummary> evaluate(int64_t step);  // nullopt: asked to stop
  void save();
  bool is_replay() const { return replay_ != nullptr; }

  const RunRequest& request_;
  const RunConfig& config_;
  RankContext& context_;
  RunFolder* folder_;
  text::Tokenizer tokenizer_;
  std::unique_ptr<reward::Rule> reward_;
  PromptStream prompts_;
  std::unique_ptr<PromptStream> eval_prompts_;
  algo::Algorithm algorithm_;
  planner::Schedule schedule_;
  Actor actor_;
  std::unique_ptr<model::ModelOnRank> reference_;  // null: the loss needs none, or takes the start under its adapters
  std::unique_ptr<StagedReward> staged_reward_;  // where the schedule has a stage for it, on ranks that train
  Residency residency_;
  queue::SampleQueue queue_;
  BatchRows bodies_;
  std::unique_ptr<RolloutRole> rollout_;
  std::unique_ptr<data::SampleReader> replay_;
  StateFiles files_;
  Progress progress_;
  comm::StartSkew skew_;
  RunState state_;
  double started_s_ = 0, seconds_before_ = 0;
  std::optional<EvalSummary> last_eval_;
};

}  // namespace tandem::runtime
