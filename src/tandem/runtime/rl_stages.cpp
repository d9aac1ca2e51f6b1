// SPDX-License-Identifier: Apache-2.0
// The stages of a step: what each reads and fills of StepData.
#include "tandem/runtime/rl_run.h"

#include <algorithm>
#include <cmath>

#include "tandem/algo/advantage.h"
#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/comm/agree.h"
#include "tandem/model/flops.h"
#include "tandem/train/balance.h"

namespace tandem::runtime {

bool RlRun::run_stage(const planner::Stage& stage, StepData& step) {
  switch (stage.kind) {
    case planner::StageKind::kRollout:
      if (is_replay() ? context_.stop_agreed() : !rollout_->run_until_batch()) return false;
      take_batch(step);
      break;
    case planner::StageKind::kReward: reward_scores(step); break;
    case planner::StageKind::kReference: reference_logprobs(step); break;
    case planner::StageKind::kOldLogprob: old_logprobs(step); break;
    case planner::StageKind::kAdvantage: advantages(step); break;
    case planner::StageKind::kUpdate: update(step); break;
    case planner::StageKind::kSwitch: switch_weights(step); break;
  }
  return true;
}

void RlRun::take_batch(StepData& step) {
  const data::StepId id{state_.step + 1};
  if (is_replay()) {
    step.batch = replay_->batch(id);
    step.batch.version = data::PolicyVersion{state_.version};
    bodies_.keep_everywhere(step.batch.groups);
  } else {
    std::optional<data::Batch> batch = queue_.take(data::Stage::kTrain, data::ReplicaId{0}, id);
    TANDEM_CHECK(batch, "the queue is closed");
    step.batch = std::move(*batch);
  }
  make_rows(step);
}

std::span<const int16_t> RlRun::routes_of(const data::Sample& sample, const data::Group& group) const {
  const std::span<const int16_t> routes = bodies_.routes(sample.id);
  const int64_t tokens = bodies_.num_prompt_tokens(group) + bodies_.num_tokens(sample.id) - 1;
  const int64_t width = actor_.route_width();
  if (std::ssize(routes) != tokens * width)
    throw UserError("schedule.routing_replay",
                    join_text("sample ", value(sample.id), " has ", routes.size(), " routes for ", tokens, " tokens of ", width),
                    "samples that were rolled out with routing_replay: true");
  return routes;
}

// Which data-parallel rank trains which row is the same computation on every rank, from lengths alone. Whole groups where there are
// enough to level the ranks, so that their samples share a prompt; else single samples.
void RlRun::deal_rows(StepData& step) {
  const int dp = context_.train_layout.dp;
  const bool by_group = std::ssize(step.batch.groups) >= 4 * dp;
  std::vector<model::TokenWork> work;  // of what goes to one rank
  std::vector<size_t> unit;            // of each row
  for (const data::Group& group : step.batch.groups) {
    const int64_t prompt_tokens = bodies_.num_prompt_tokens(group);
    for (const data::Sample& sample : group.samples) {
      const bool first = !by_group || &sample == &group.samples.front();
      if (first) work.emplace_back();
      work.back().add(prompt_tokens + bodies_.num_tokens(sample.id), first ? 0 : prompt_tokens);
      unit.push_back(work.size() - 1);
    }
  }
  std::vector<double> costs;
  for (const model::TokenWork& each : work) costs.push_back(model::training_flops(actor_.config(), each));
  const std::vector<int> owner = train::balance(costs, dp);
  const int me = context_.trains() ? context_.train_layout.dp_rank(context_.train_rank()) : -1;
  for (size_t i = 0; i < unit.size(); ++i) {
    step.owners.push_back(owner[unit[i]]);
    if (step.owners.back() == me) step.mine.push_back(i);
  }
  if (!is_replay())
    context_.recorder.set("throughput/moved_bytes", static_cast<double>(bodies_.deal(step.batch.groups, step.owners,
                                                                                     scores_in_stage(config_))));
}

// Rows in the order groups, then samples. Those of other ranks stay empty.
void RlRun::make_rows(StepData& step) {
  deal_rows(step);
  const std::string& mode = config_.schedule.old_logprobs;
  const int me = context_.trains() ? context_.train_layout.dp_rank(context_.train_rank()) : -1;
  for (const data::Group& group : step.batch.groups)
    for (const data::Sample& sample : group.samples) {
      train::Row& row = step.rows.emplace_back();
      if (step.owners[step.rows.size() - 1] != me) continue;
      row.prompt = bodies_.prompt(group);
      row.response = bodies_.response(sample.id);
      row.behavior = bodies_.logprobs(sample.id);
      if (config_.schedule.routing_replay) row.routes = routes_of(sample, group);
      // The weights of a replay are its own: whatever the versions say, the samples come from elsewhere.
      row.fresh = bodies_.is_sampled_by(sample.id, step.batch.version) && !is_replay();
      if (mode == "rollout" || (mode == "auto" && !row.fresh)) row.old.assign(row.behavior.begin(), row.behavior.end());
    }
}

namespace {

std::vector<train::Row> rows_of(const StepData& step) {
  std::vector<train::Row> rows;
  for (size_t i : step.mine) rows.push_back(step.rows[i]);
  return rows;
}

}  // namespace

// Of all samples in order, on all ranks; this one computes `mine`, which are `answers`.
std::vector<double> RlRun::model_scores(size_t num_samples, const std::vector<size_t>& mine, std::span<const reward::Answer> answers) {
  std::vector<std::vector<float>> rows(num_samples);
  if (staged_reward_) {
    std::vector<std::vector<float>> scored = staged_reward_->score(answers, config_.train.reference_micro_batch_tokens);
    for (size_t i = 0; i < mine.size(); ++i) rows[mine[i]] = std::move(scored[i]);
  }
  comm::exchange_rows(context_.world, rows, context_.speaks_for_train());
  std::vector<double> scores;
  for (const std::vector<float>& row : rows) scores.push_back(row.at(0));
  return scores;
}

void RlRun::reward_scores(StepData& step) {
  if (is_replay()) return;  // they have scores
  std::vector<reward::Answer> answers;
  size_t row = 0;
  for (const data::Group& head : step.batch.groups) {
    data::Group group{head.id, prompts_.at_position(value(head.id)), head.version, {}};
    for (data::Sample sample : head.samples) {
      if (!std::ranges::binary_search(step.mine, row++)) continue;
      sample.text = bodies_.text(sample.id);
      answers.push_back(reward::answer_of(group, sample));
    }
  }
  set_scores(step.batch.groups, model_scores(row, step.mine, answers));
}

void RlRun::reference_logprobs(StepData& step) {
  if (!context_.trains()) return;
  std::vector<train::Row> rows = rows_of(step);
  for (train::Row& row : rows) row.routes = {};  // the reference chooses for itself
  const model::ModelOnRank& model = reference_ ? *reference_ : actor_.train_model();
  auto scored = train::score(model.decoder(), reference_ ? model.parameters() : actor_.base_parameters(), rows,
                             config_.rollout.sampling.temperature,
                             config_.train.reference_micro_batch_tokens);
  for (size_t i = 0; i < step.mine.size(); ++i) step.rows[step.mine[i]].reference = std::move(scored[i]);
}

void RlRun::old_logprobs(StepData& step) {
  if (!context_.trains()) return;
  auto scored = train::score(actor_.train_model().decoder(), actor_.train_model().parameters(), rows_of(step),
                             config_.rollout.sampling.temperature, config_.train.logprob_micro_batch_tokens);
  for (size_t i = 0; i < step.mine.size(); ++i) step.rows[step.mine[i]].old = std::move(scored[i]);
}

void RlRun::advantages(StepData& step) {
  std::vector<double> scores;
  std::vector<int64_t> groups;
  for (const data::Group& group : step.batch.groups)
    for (const data::Sample& sample : group.samples) {
      if (!std::isfinite(sample.score))
        throw UserError("reward", join_text("the score of a sample of group ", value(group.id), " is ", sample.score), "a finite number");
      scores.push_back(sample.score);
      groups.push_back(value(group.id));
    }
  step.advantages = algo::group_advantages(scores, groups, algorithm_);
  for (size_t i = 0; i < step.rows.size(); ++i) step.rows[i].advantage = step.advantages[i];
}

void RlRun::update(StepData& step) {
  if (context_.trains()) {
    const double lr = train::learning_rate(config_.train, state_.step + 1, config_.run.steps);
    step.report = actor_.trainer().policy_step(rows_of(step), algorithm_, config_.rollout.sampling.temperature, lr);
    context_.recorder.set("memory/activations_bytes", static_cast<double>(step.report.activation_peak_bytes));
  }
  if (overlaps() && context_.rolls_out()) rollout_->run_ahead();
  ++state_.step;
  ++state_.version;
}

bool RlRun::overlaps() const { return rollout_ && context_.placement.is_split() && schedule_.staleness > 0; }

// Those that trained and those that generated meanwhile hear of each other.
void RlRun::meet(StepData& step) {
  const double begin = now_s();
  if (overlaps()) rollout_->tell_ahead();
  step.logprobs.resize(step.rows.size());
  for (size_t i = 0; i < step.mine.size(); ++i) step.logprobs[step.mine[i]] = std::move(step.report.logprobs[i]);
  step.logprobs = bodies_.collect(step.batch.groups, step.owners, std::move(step.logprobs));
  context_.recorder.add("time/wait_s", now_s() - begin);
}

// The engine has no version until every rank has the new weights.
void RlRun::move_weights() {
  const auto move = [this] { actor_.switch_to_rollout(); };
  if (!rollout_) return move();
  rollout_->switch_weights(move, rollout_weights());
}

rollout::NewWeights RlRun::rollout_weights() const {
  return {context_.rolls_out() ? &actor_.rollout_model().parameters() : nullptr, data::PolicyVersion{state_.version}};
}

void RlRun::switch_weights(StepData& step) {
  if (is_replay()) return move_weights();
  const std::vector<data::GroupId> without_token = rollout_->without_token();
  const std::vector<data::GroupId> evicted = queue_.commit(step.batch.step, data::PolicyVersion{state_.version}, without_token);
  rollout_->cancel(evicted);
  bodies_.drop(evicted);
  if (folder_) folder_->samples().append_dropped(step.batch.step, evicted);
  move_weights();
}

}  // namespace tandem::runtime
