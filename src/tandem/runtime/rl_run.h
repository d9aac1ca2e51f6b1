// SPDX-License-Identifier: Apache-2.0
#pragma once
// One rank of an RL run: owns the roles and goes through the schedule.
//
//   run           the loop: planner/interpret.h says which stage is next
//   perform       memory for the stage (policy/residency.h), then the stage (stage/stages.h)
//   finish_step   what the step leaves (stage/step_record.h, folder/ledger.h); conclude_step evaluates and saves

#include <memory>
#include <optional>
#include <vector>

#include "tandem/algo/algorithm.h"
#include "tandem/comm/start_skew.h"
#include "tandem/planner/interpret.h"
#include "tandem/policy/residency.h"
#include "tandem/runtime/folder/ledger.h"
#include "tandem/runtime/run.h"
#include "tandem/runtime/sample/rollout_role.h"
#include "tandem/runtime/stage/stages.h"
#include "tandem/runtime/stage/step_record.h"
#include "tandem/serve/reward_model.h"

namespace tandem::runtime {

/// What a run starts from.
struct RunStart {
  std::string model_dir;
  model::ModelConfig model;
  planner::Schedule schedule;
};

/// Called by  run.cpp, on every rank.
/// Threads    one per rank; all ranks make the same calls.
/// Errors     as run_rl.
/// Read next  stage/stages.h, sample/rollout_role.h, folder/ledger.h
class RlRun {
 public:
  /// `folder` is null on all ranks but the first.
  RlRun(const RunRequest& request, const policy::RunParts& parts, RunFolder* folder, const RunStart& start);

  RunSummary run();

 private:
  RunSummary run_to_end(StepData& step);  // the step under way
  void check_contexts() const;
  void load_reference();
  void load_reward_model();
  void load_critic();
  void make_source();
  Roles roles();
  void enter(const planner::Stage& stage);
  StageEnd perform(const planner::Stage& stage, StepData& step);
  void restore_or_start();
  void announce() const;
  void evaluate_before();
  std::optional<serve::EvalSummary> evaluate(data::StepId step);  // nullopt: asked to stop
  void score_in_stage(std::vector<data::Group>& answers);
  void give_rollout_weights();
  void finish_step(const StepData& step);
  void conclude_step();
  void save(bool behind = false);
  [[noreturn]] void stop(const std::string& where);

  const RunRequest& request_;
  const policy::RunParts& parts_;
  const config::RunConfig& config_;
  const planner::Schedule schedule_;
  text::Tokenizer tokenizer_;
  serve::RewardModels reward_models_;
  std::unique_ptr<reward::Rule> reward_;
  std::shared_ptr<const generate::Environment> environment_;  // where this rank talks to it
  serve::PromptStream prompts_;
  std::optional<serve::PromptStream> eval_prompts_;
  algo::Algorithm algorithm_;
  policy::Actor actor_;
  std::vector<policy::TrainedRole*> trained_{&actor_.trained()};
  std::unique_ptr<policy::TrainedRole> critic_;           // null: advantages need none
  Ledger ledger_;                                         // its writer may read both
  std::unique_ptr<model::ModelOnRank> reference_;         // null: the loss needs none, or takes the start under its adapters
  std::unique_ptr<policy::StagedReward> staged_reward_;   // where the schedule has a stage for it, on ranks that train
  policy::Residency residency_;
  planner::Homes homes_;
  BatchRows bodies_;
  std::optional<EarlyPasses> early_;                            // where ranks that train wait for those that generate
  std::optional<data::DecisionReader> followed_;                // of the free run that this one repeats
  std::unique_ptr<SampleSource> source_;
  comm::StartSkew skew_;
  std::vector<StageSpan> spans_;                          // of the step under way
  double waited_in_stages_s_ = 0, idle_before_s_ = 0;     // the latter of a stream, when the step began
  std::optional<serve::EvalSummary> last_eval_;
};

}  // namespace tandem::runtime
