// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the stages of a step do: functions over the data of the step and the roles of the run. The loop in rl_run.cpp calls run_stage;
// each function calls the role that does the work.
//
//   rollout    prompts -> groups -> scores -> queue      until a batch is ready; then its rows are dealt to the ranks that train
//   replay     the batch of an earlier run               instead; dealt alike
//   reward     scores of a reward model                  placement fully_colocated; else beside generation. Rollout and reward run again
//                                                        while groups of the batch have no spread, under algo.filter_groups
//   reference  log-probabilities under the reference     if the loss has a KL term
//   old_logprob  log-probabilities before the update     if the recipe, or rewards of tokens, want them anew
//   values     what the critic expects from each token on  under algo.advantage gae
//   advantage  scores -> advantages
//   train_critic  the critic learns the returns          under gae; as often as train
//   train      loss, gradient, optimizer update; as often as the algorithm asks for
//   ahead      rollout for the next batch                on other ranks than train, beside it
//   meet       what ran ahead, and how the update ended, to all
//   switch     the update is committed to the source; then the new weights go to the rollout

#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tandem/algo/advantage.h"
#include "tandem/planner/schedule.h"
#include "tandem/policy/actor.h"
#include "tandem/policy/staged_reward.h"
#include "tandem/runtime/folder/run_folder.h"
#include "tandem/runtime/folder/sample_writer.h"
#include "tandem/runtime/sample/batch_rows.h"
#include "tandem/runtime/sample/early_passes.h"
#include "tandem/runtime/sample/sample_source.h"
#include "tandem/serve/prompt_stream.h"

namespace tandem::algo {
struct Algorithm;
}

namespace tandem::runtime {

/// Everything about the samples of one step, between the stages.
struct StepData {
  data::StepId id{};
  data::PolicyVersion before{};                  ///< of the weights that the update starts from
  double begin_s = 0;
  data::Batch batch;                             ///< heads: their bodies are in BatchRows
  std::vector<train::Row> rows;                  ///< one per sample, groups in order; those of `mine` read the bodies in place
  std::vector<double> advantages;                ///< one per sample, the mean over its tokens; where this rank trains
  std::vector<std::vector<float>> values;        ///< of all rows, where this rank trains: one per response token, and under
                                                 ///< critic.bootstrap_truncated that of the whole text; empty without a critic
  std::vector<std::vector<float>> logprobs_before;  ///< of each of `mine`, by the weights before the update, where rewards read them and
                                                 ///< a stage computed them
  double deviation = 0;                          ///< of the advantages before they were whitened, where the algorithm whitens
  std::optional<double> kl_reference;            ///< where it is a reward: the mean over responses of the mean over tokens
  std::vector<int> owners;                       ///< the data-parallel rank that trains a row; the same on every rank
  std::vector<size_t> mine;                      ///< rows this one trains
  std::vector<train::Row> beyond;                ///< of groups beyond a batch without a fresh row: fresh rows, to measure the gap on
  std::vector<int64_t> mini_batch;               ///< the part of the batch that a row belongs to; the same on every rank
  int64_t num_early = 0;                         ///< groups whose passes were made before the batch was complete
  int64_t num_updates = 0;
  bool is_updated = false;                       ///< some weights, the critic's or the actor's, are not those of the step before
  train::StepReport report;                      ///< of the actor; its log-probabilities before the first update on each of `mine`
  std::optional<train::StepReport> critic_report;
  std::exception_ptr fault;                      ///< a StepFailed of a stage that some ranks have not; meet tells the others
  std::string ends;                              ///< why the run ends after this step: it is updated in part; "" if it goes on

  data::PolicyVersion after() const { return data::PolicyVersion{value(before) + 1}; }
};

/// Of a function of the host that gives a number that is not finite.
class NotFiniteGiven : public UserError {
  using UserError::UserError;
};

/// Functions of the program that hosts a run, in place of what the recipe names. Each may be empty.
/// Threads  reward: any number at once. The others: those of the ranks, some at once.
/// Errors   what they throw ends the run with the last step saved, as a failing reward does.
struct Hooks {
  /// A score for each answer of a group.
  std::function<std::vector<reward::Score>(std::span<const reward::Answer>)> reward;
  /// What each response of a batch is worth, in place of algo/advantage.h:compare_responses. Called once a step, on rank 0.
  std::function<std::vector<double>(const algo::Responses&)> advantage;
  /// In place of the policy loss. Called once an update on each replica.
  std::function<train::LossGradient(const train::LossColumns&)> loss;
  /// How many tokens the response of a sample may have, in place of rollout.max_new_tokens, which none may exceed. A benchmark's.
  std::function<int64_t(data::SampleId)> most_tokens;
  /// Hears of each token step of this process: tokens drawn, and seconds. From the threads that generate. A benchmark's.
  std::function<void(int64_t tokens, double seconds)> stepped;
  /// Which of them no recipe names: a resume tells when they are others.
  std::vector<HostFunction> functions;
};

/// Before a run makes anything, so that a function that fails at once ends the command at once: calls loss and advantage, where there are
/// any, as the first update of a run would, with one mini-batch and with one batch. Responses have 2 to 4 tokens; logprobs, old and
/// behavior are alike, as on fresh samples; scores are 0 and 1 in turns. What the functions return is thrown away. serve/reward_trial.h
/// does this for rewards. hook_trial.cpp has it.
/// Errors: UserError with the words of the function's; of a number that is not finite only a warning.
void try_hooks(const Hooks& hooks, const config::RunConfig& config);

/// What stages work with. The run owns all of it.
struct Roles {
  const policy::RunParts& parts;
  const algo::Algorithm& algorithm;
  policy::Actor& actor;
  const model::ModelOnRank* reference;        ///< null: the loss needs none, or takes the start under its adapters
  policy::TrainedRole* critic;                ///< null: advantages need none
  const policy::StagedReward* staged_reward;  ///< where the schedule has a stage for it, on ranks that train
  SampleSource& source;                       ///< a RolloutRole, or a Replay
  EarlyPasses* early;                         ///< null: none are made
  BatchRows& bodies;                          ///< tokens and what goes with them, on the ranks that have them
  const serve::PromptStream& prompts;
  SampleWriter* samples;                      ///< on rank 0
  int64_t lr_steps;                           ///< RunState::lr_steps
  const Hooks& hooks;                         ///< of the host
};

/// How a stage ended. kAgain: the batch lost groups, and the schedule's repeat begins anew, with a fresh StepData.
enum class StageEnd { kDone, kAgain, kStopped };

/// What a stage reads and fills is planner/schedule.h:Stage. kStopped if the run was asked to stop. Collective over the stage's ranks.
/// Errors: as run_rl; StepFailed on all ranks of the run, where no weights are updated yet.
StageEnd run_stage(const planner::Stage& stage, StepData& step, const Roles& roles);

/// The rows of these groups (bare heads), whose bodies are here, for values_of_rows(). Errors: UserError for a sample that lacks its
/// routes.
std::vector<train::Row> rows_of_groups(std::span<const data::Group> heads, const Roles& roles);
/// What kReference, kOldLogprob or kValues computes of each response token. Empty but on the last pipeline stage. Collective over the ranks
/// that train.
TokenValues values_of_rows(planner::StageKind stage, std::vector<train::Row> rows, const Roles& roles);

/// The weights of training go to the rollout, which has `version` from then on. It is the second half of the stage `switch`. A start calls
/// it, too, and an evaluation that a reward model scored. rollout/engine.h has the order. gap/weights_checksum is of what rollout then
/// holds. Collective over the world. Errors: PeerError on all ranks where replicas hold other bits.
void switch_weights(const Roles& roles, data::PolicyVersion version);

/// The reward model scores all samples, on all ranks; this one asks it about `answers`, those of samples[mine]. Errors: StepFailed for an
/// answer that the model cannot read and, under `reward.on_error: end`, a score that is not finite. Collective over the world.
void score_by_model(const Roles& roles, std::span<data::Sample* const> samples, const std::vector<size_t>& mine,
                    std::span<const reward::Answer> answers);

}  // namespace tandem::runtime
