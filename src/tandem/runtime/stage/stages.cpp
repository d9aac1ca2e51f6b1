// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/stage/stages.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tandem/algo/advantage.h"
#include "tandem/algo/algorithm.h"
#include "tandem/algo/gap.h"
#include "tandem/algo/policy_loss.h"
#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/comm/agree.h"
#include "tandem/config/algorithm.h"
#include "tandem/model/flops.h"
#include "tandem/reward/scorer.h"
#include "tandem/runtime/stage/advantages.h"
#include "tandem/runtime/stage/step_record.h"
#include "tandem/train/balance.h"

namespace tandem::runtime {
namespace {

// Errors: UserError if the sample has none, or those of another model.
std::span<const int16_t> routes_of(const data::Sample& sample, const data::Group& group, const Roles& roles) {
  const std::span<const int16_t> routes = roles.bodies.body(sample.id).routes;
  const int64_t tokens = roles.bodies.num_prompt_tokens(group) + roles.bodies.num_tokens(sample.id) - 1;
  const int64_t width = roles.actor.route_width();
  if (std::ssize(routes) != tokens * width)
    throw UserError("schedule.routing_replay",
                    join_text("sample ", value(sample.id), " has ", routes.size(), " routes for ", tokens, " tokens of ", width),
                    "samples that were rolled out with routing_replay: true");
  return routes;
}

// What goes to one rank as a whole: its cost in training, and the unit of each row. Whole groups where there are enough to level the
// ranks, so that their samples share a prompt; else single samples.
struct Units {
  std::vector<double> costs;
  std::vector<size_t> of_row;
};

Units units_of(std::span<const data::Group> groups, const Roles& roles, int dp) {
  const bool by_group = std::ssize(groups) >= 4 * dp;
  std::vector<model::TokenWork> work;
  Units units;
  for (const data::Group& group : groups) {
    const int64_t prompt_tokens = roles.bodies.num_prompt_tokens(group);
    for (const data::Sample& sample : group.samples) {
      const bool first = !by_group || &sample == &group.samples.front();
      if (first) work.emplace_back();
      work.back().add(prompt_tokens + roles.bodies.num_tokens(sample.id), first ? 0 : prompt_tokens);
      units.of_row.push_back(work.size() - 1);
    }
  }
  for (const model::TokenWork& each : work) units.costs.push_back(model::training_flops(roles.actor.config(), each));
  return units;
}

// Which data-parallel rank trains which row is the same computation on every rank, from lengths alone. Each mini-batch is levelled by
// itself.
void deal_rows(StepData& step, const Roles& roles) {
  const policy::Ranks& ranks = roles.parts.ranks;
  const std::span<const data::Group> groups = step.batch.groups;
  const auto parts = static_cast<size_t>(roles.algorithm.updates.mini_batches);
  if (groups.size() < parts)
    throw UserError("algo.mini_batches", join_text("is ", parts, ", and a batch to be replayed has ", groups.size(), " groups"),
                    "at most as many as groups");
  for (size_t part = 0; part < parts; ++part) {
    const size_t begin = groups.size() * part / parts, end = groups.size() * (part + 1) / parts;
    const Units units = units_of(groups.subspan(begin, end - begin), roles, ranks.train_layout.dp);
    const std::vector<int> owner = train::balance(units.costs, ranks.train_layout.dp);
    for (const size_t unit : units.of_row) {
      if (owner[unit] == ranks.train_dp_rank()) step.mine.push_back(step.owners.size());
      step.owners.push_back(owner[unit]);
      step.mini_batch.push_back(static_cast<int64_t>(part));
    }
  }
  const config::RunConfig& config = roles.parts.config;
  const bool with_records = config::scores_in_stage(config) || config::old_logprobs_of(config, roles.algorithm).loglinear;
  const int64_t moved = roles.bodies.deal(step.batch.groups, step.owners, with_records);
  roles.parts.recorder.set("throughput/moved_bytes", static_cast<double>(moved));
}

// What a pass reads of a sample whose body is here.
train::Row row_of(const data::Sample& sample, const data::Group& group, const Roles& roles) {
  train::Row row;
  const BatchRows::Body body = roles.bodies.body(sample.id);
  row.prompt = roles.bodies.prompt(group);
  row.response = body.response;
  row.behavior = body.logprobs;
  row.sampled = body.trainable;
  row.trainable.assign(body.trainable.begin(), body.trainable.end());
  if (roles.parts.config.schedule.routing_replay) row.routes = routes_of(sample, group, roles);
  return row;
}

// Rows in the order groups, then samples. Those of other ranks stay empty.
void make_rows(StepData& step, const Roles& roles) {
  const config::RunConfig& config = roles.parts.config;
  const config::OldLogprobs old = config::old_logprobs_of(config, roles.algorithm);
  const bool versions_are_ours = roles.source.generation() || config.has_workers();
  for (const data::Group& group : step.batch.groups)
    for (const data::Sample& sample : group.samples) {
      train::Row& row = step.rows.emplace_back();
      if (step.owners[step.rows.size() - 1] != roles.parts.ranks.train_dp_rank()) continue;
      row = row_of(sample, group, roles);
      row.fresh = versions_are_ours && (row.response.empty() || roles.bodies.facts(sample.id).are_of(step.batch.version));
      if (old.of_rollout || (old.of_stale_rollout && !row.fresh)) row.old.assign(row.behavior.begin(), row.behavior.end());
      if (old.loglinear)
        for (const int64_t version : roles.bodies.body(sample.id).versions)
          row.behind.push_back(static_cast<float>(value(step.after()) - version));
      if (!is_trainable(sample, roles)) row.trainable.assign(row.response.size(), 0);
    }
}

bool take_batch(StepData& step, const Roles& roles) {
  std::optional<data::Batch> batch = roles.source.next_batch(step.id, step.before);
  if (!batch) return false;
  step.batch = std::move(*batch);
  if (roles.early) step.num_early = roles.early->num_done(step.batch.groups);
  fail_alike(roles.parts.ranks.world, [&] {
    deal_rows(step, roles);
    make_rows(step, roles);
  });
  step.beyond = fresh_beyond(step, roles);
  return true;
}

std::vector<train::Row> rows_of(const StepData& step) {
  std::vector<train::Row> rows;
  for (size_t i : step.mine) rows.push_back(step.rows[i]);
  return rows;
}

// What has no score yet, on the rank that owns its row; a greedy answer where its group's first sample is.
void reward_scores(StepData& step, const Roles& roles) {
  std::vector<data::Sample*> asked;  // of all ranks
  std::vector<size_t> mine;          // places in `asked`
  std::vector<reward::Answer> answers;
  size_t row = 0;
  for (data::Group& head : step.batch.groups) {
    const data::Group group{head.id, roles.prompts.at_position(value(head.id)), head.version, {}};
    const auto ask = [&](data::Sample& sample, size_t owned_as) {
      if (sample.scored) return;
      asked.push_back(&sample);
      if (!std::ranges::binary_search(step.mine, owned_as)) return;
      mine.push_back(asked.size() - 1);
      data::Sample whole = sample;
      if (!head.greedy || &sample != &*head.greedy) whole.text = roles.bodies.body(sample.id).text;
      answers.push_back(reward::answer_of(group, whole));
    };
    const size_t first = row;
    for (data::Sample& sample : head.samples) ask(sample, row++);
    if (head.greedy) ask(*head.greedy, first);
  }
  score_by_model(roles, asked, mine, answers);
  for (data::Group& head : step.batch.groups)
    if (head.greedy) head.greedy->text.clear();
}

// Of the rows that this rank trains. Some were made before the batch was complete.
TokenValues values_of_step(planner::StageKind stage, const StepData& step, const Roles& roles) {
  if (!roles.early) return values_of_rows(stage, rows_of(step), roles);
  auto early = roles.early->take(stage, step.batch.groups);
  std::vector<train::Row> rows;
  for (const size_t i : step.mine)
    if (!early[i]) rows.push_back(step.rows[i]);
  TokenValues late = values_of_rows(stage, std::move(rows), roles), all;
  size_t next = 0;
  for (const size_t i : step.mine) all.push_back(std::move(early[i] ? *early[i] : late.at(next++)));
  return all;
}

void reference_logprobs(StepData& step, const Roles& roles) {
  TokenValues logprobs = values_of_step(planner::StageKind::kReference, step, roles);
  for (size_t i = 0; i < step.mine.size(); ++i) step.rows[step.mine[i]].reference = std::move(logprobs[i]);
}

void old_logprobs(StepData& step, const Roles& roles) {
  TokenValues logprobs = values_of_step(planner::StageKind::kOldLogprob, step, roles);
  if (roles.algorithm.rewards_tokens()) step.logprobs_before = logprobs;
  for (size_t i = 0; i < step.mine.size(); ++i)
    if (train::Row& row = step.rows[step.mine[i]]; row.old.empty()) row.old = std::move(logprobs[i]);
}

void values(StepData& step, const Roles& roles) {
  share_rows(step, roles, values_of_step(planner::StageKind::kValues, step, roles), step.values);
  for (size_t i : step.mine) {
    const train::Row& row = step.rows[i];
    const size_t tokens = std::min(step.values[i].size(), row.response.size());  // none but on the last pipeline stage
    step.rows[i].values.assign(step.values[i].begin(), step.values[i].begin() + static_cast<std::ptrdiff_t>(tokens));
  }
}

// The rows of one update on this rank, and their places among `mine`.
struct MiniBatch {
  std::vector<train::Row> rows;
  std::vector<size_t> places;
};

// Rows are fresh in the first update alone: the next ones start from other weights.
MiniBatch mini_batch_of(const StepData& step, int64_t number, bool first) {
  MiniBatch out;
  for (size_t i = 0; i < step.mine.size(); ++i) {
    if (step.mini_batch[step.mine[i]] != number) continue;
    out.places.push_back(i);
    out.rows.push_back(step.rows[step.mine[i]]);
    if (!first) out.rows.back().fresh = false;
  }
  return out;
}

// One update. Where it is refused, as one that is not finite, the weights are as before it. nullopt if updates of the step were made
// before: then the step is what they made of it, and the run ends after it. Errors: else that UserError.
std::optional<train::StepReport> updated(StepData& step, const std::function<train::StepReport()>& update) {
  try {
    const train::StepReport report = update();
    step.is_updated |= !report.skipped;
    return report;
  } catch (const UserError& e) {
    if (!step.is_updated) throw;
    if (step.ends.empty()) step.ends = e.what();
    return std::nullopt;
  }
}

void update_critic(StepData& step, const Roles& roles) {
  const config::RunConfig& config = roles.parts.config;
  const double lr = train::learning_rate(config.critic.train, value(step.id), roles.lr_steps);
  const algo::Updates& updates = roles.algorithm.updates;
  std::vector<train::StepReport> reports;
  for (int64_t number = 0; number < updates.epochs * updates.mini_batches; ++number) {
    MiniBatch part = mini_batch_of(step, number % updates.mini_batches, number == 0);
    for (train::Row& row : part.rows) row.routes = {};
    const auto made = updated(step, [&] {
      return roles.critic->trainer().value_step(part.rows, roles.algorithm, config.critic.value_clip, lr);
    });
    if (!made) break;
    reports.push_back(*made);
  }
  if (!reports.empty()) step.critic_report = train::joined(reports, updates.mini_batches);
}

void update(StepData& step, const Roles& roles) {
  const config::RunConfig& config = roles.parts.config;
  const double lr = train::learning_rate(config.train, value(step.id), roles.lr_steps);
  const algo::Updates& updates = roles.algorithm.updates;
  const algo::GapSums beyond = gap_of(step.beyond, roles);
  std::vector<train::StepReport> reports;
  std::vector<std::vector<float>> logprobs(step.mine.size());
  const int64_t most = updates.epochs * updates.mini_batches;
  std::optional<double> stopped_at;  // KL from old
  train::Trainer& trainer = roles.actor.trained().trainer();
  train::UserLoss loss;
  if (roles.hooks.loss) loss = train::failing_alike(roles.parts.ranks.side(), roles.hooks.loss);
  for (int64_t number = 0; number < most; ++number) {
    algo::Algorithm algorithm = roles.algorithm;
    const bool may_stop = updates.max_kl > 0 && number > 0;
    if (!may_stop) algorithm.updates.max_kl = 0;
    const MiniBatch part = mini_batch_of(step, number % updates.mini_batches, number == 0);
    const double temperature = config.rollout.sampling.temperature;
    auto made = updated(step, [&] {
      return trainer.policy_step(part.rows, algorithm, temperature, lr, loss);
    });
    if (may_stop && made && made->kl_old > updates.max_kl) stopped_at = made->kl_old;
    if (!made || stopped_at) break;
    train::StepReport& report = reports.emplace_back(std::move(*made));
    if (number < updates.mini_batches)
      for (size_t i = 0; i < part.places.size(); ++i) logprobs[part.places[i]] = std::move(report.logprobs[i]);
  }
  step.num_updates = std::ranges::count(reports, false, &train::StepReport::skipped);
  step.report.skipped = true;  // so that nothing is measured where no update was made
  if (!reports.empty()) step.report = train::joined(reports, updates.mini_batches);
  if (stopped_at) step.report.kl_old = *stopped_at;
  for (size_t i = 0; i < logprobs.size() && (stopped_at || !step.ends.empty()); ++i)  // of rows whose update was not made
    if (logprobs[i].empty()) logprobs[i].assign(step.rows[step.mine[i]].response.size(), std::numeric_limits<float>::quiet_NaN());
  if (beyond.tokens() > 0) step.report.gap_tokens = beyond.tokens(), step.report.gap = beyond.report();
  step.report.logprobs = std::move(logprobs);
  roles.parts.recorder.set("memory/activations_bytes", static_cast<double>(step.report.activation_peak_bytes));
}

// Ranks that have not trained hear how it went. Errors: StepFailed.
void hear_of_end(StepData& step, const policy::Ranks& ranks) {
  if (!ranks.side_group) return;  // all have trained
  fail_alike(ranks.world, step.fault);
  const std::vector<std::string> texts = comm::texts_of_all(ranks.world, step.ends);
  const auto end = std::ranges::find_if(texts, [](const std::string& text) { return !text.empty(); });
  if (end != texts.end()) step.ends = *end;
}

void meet(StepData& step, const Roles& roles) {
  const double begin = now_s();
  roles.source.meet();
  hear_of_end(step, roles.parts.ranks);
  roles.parts.recorder.add("time/wait_s", now_s() - begin);
}

void commit(const StepData& step, const Roles& roles) {
  if (roles.early) roles.early->forget();
  const std::vector<data::GroupId> evicted = roles.source.commit(step.id, step.after());
  if (roles.samples) roles.samples->append_dropped(step.id, evicted);
}

}  // namespace

void score_by_model(const Roles& roles, std::span<data::Sample* const> samples, const std::vector<size_t>& mine,
                    std::span<const reward::Answer> answers) {
  std::vector<std::vector<int32_t>> texts;  // a rank may have one that no model can read, before anything collective
  fail_alike(roles.parts.ranks.world, [&] {
    if (roles.staged_reward) texts = roles.staged_reward->tokens(answers);
  });
  std::vector<std::vector<float>> rows(samples.size());
  if (roles.staged_reward) {
    std::vector<std::vector<float>> scored = roles.staged_reward->score(texts, roles.parts.config.train.reference_micro_batch_tokens);
    for (size_t i = 0; i < mine.size(); ++i) rows[mine[i]] = std::move(scored[i]);
  }
  comm::exchange_rows(roles.parts.ranks.world, rows, roles.parts.ranks.speaks_for_train());
  for (size_t i = 0; i < samples.size(); ++i) {
    data::Sample& sample = *samples[i];
    sample.score = rows[i].at(0);
    sample.parts = {{"model", sample.score}};
    sample.scored = true;
    if (std::isfinite(sample.score)) continue;
    if (roles.parts.config.reward.on_error == "end") {
      const UserError fault("reward model", join_text("scores sample ", value(sample.id), " ", sample.score), "a finite number");
      throw StepFailed(exit_code_of(fault), fault.what());
    }
    sample.score = 0;
    sample.parts = {{reward::kFailedPart, 1.0}};
  }
}

std::vector<train::Row> rows_of_groups(std::span<const data::Group> heads, const Roles& roles) {
  std::vector<train::Row> rows;
  for (const data::Group& head : heads)
    for (const data::Sample& sample : head.samples) rows.push_back(row_of(sample, head, roles));
  return rows;
}

TokenValues values_of_rows(planner::StageKind stage, std::vector<train::Row> rows, const Roles& roles) {
  const config::RunConfig& config = roles.parts.config;
  const policy::TrainedRole& actor = roles.actor.trained();
  const double temperature = config.rollout.sampling.temperature;
  if (stage == planner::StageKind::kOldLogprob)
    return train::score(actor.model().decoder(), actor.trainer().parameters(), rows, temperature, config.train.logprob_micro_batch_tokens);
  for (train::Row& row : rows) row.routes = {};  // the reference and the critic choose for themselves
  if (stage == planner::StageKind::kReference) {
    const model::ModelOnRank& model = roles.reference ? *roles.reference : actor.model();  // the actor's, without its adapters
    return train::score(model.decoder(), model.parameters(), rows, temperature, config.train.reference_micro_batch_tokens);
  }
  TANDEM_CHECK(stage == planner::StageKind::kValues, "a stage without token values");
  const model::ModelOnRank& model = roles.critic->model();
  std::vector<std::vector<int32_t>> longer(config.critic.bootstrap_truncated ? rows.size() : 0);
  for (size_t i = 0; i < longer.size(); ++i) {  // any token more, so that the whole text has a value, too
    longer[i].assign(rows[i].response.begin(), rows[i].response.end());
    longer[i].push_back(0);
    rows[i].response = longer[i];
  }
  return train::token_values(model.decoder(), model.parameters(), rows, config.critic.value_micro_batch_tokens);
}

void switch_weights(const Roles& roles, data::PolicyVersion version) {
  roles.source.switch_weights([&] { return roles.actor.send_weights(); }, version);
  const std::string what = join_text("the weights of policy version ", value(version));
  const uint64_t sum = model::sum_of_all(roles.parts.ranks.world, roles.actor.rollout_sums(), what);
  roles.source.know_weights(version, sum);
  roles.parts.recorder.set("gap/weights_checksum", model::metric_of(sum));
}

namespace {

StageEnd run(const planner::Stage& stage, StepData& step, const Roles& roles) {
  switch (stage.kind) {
    case planner::StageKind::kRollout:
    case planner::StageKind::kReplay: return take_batch(step, roles) ? StageEnd::kDone : StageEnd::kStopped;
    case planner::StageKind::kReward:
      reward_scores(step, roles);
      return !roles.parts.config.algo.filter_groups || roles.source.accept(step.batch) ? StageEnd::kDone : StageEnd::kAgain;
    case planner::StageKind::kReference: reference_logprobs(step, roles); break;
    case planner::StageKind::kOldLogprob: old_logprobs(step, roles); break;
    case planner::StageKind::kValues: values(step, roles); break;
    case planner::StageKind::kAdvantage: advantages(step, roles); break;
    case planner::StageKind::kUpdateCritic: update_critic(step, roles); break;
    case planner::StageKind::kUpdate: update(step, roles); break;
    case planner::StageKind::kAhead: roles.source.run_ahead(); break;
    case planner::StageKind::kMeet: meet(step, roles); break;
    case planner::StageKind::kSwitch:
      commit(step, roles);
      switch_weights(roles, step.after());
      break;
  }
  return StageEnd::kDone;
}

// What every rank of these stages computes from the same numbers: they fail alike.
bool fails_alike(planner::StageKind kind) {
  using enum planner::StageKind;
  return kind == kReward || kind == kAdvantage || kind == kUpdateCritic || kind == kUpdate;
}

}  // namespace

StageEnd run_stage(const planner::Stage& stage, StepData& step, const Roles& roles) {
  if (step.fault && stage.kind != planner::StageKind::kMeet) return StageEnd::kDone;
  try {
    return run(stage, step, roles);
  } catch (const UserError& e) {
    if (!fails_alike(stage.kind)) throw;
    if (stage.ranks.count == roles.parts.ranks.world.size()) throw StepFailed(exit_code_of(e), e.what());
    step.fault = std::make_exception_ptr(StepFailed(exit_code_of(e), e.what()));
    return StageEnd::kDone;
  }
}

}  // namespace tandem::runtime
