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

bool is_trainable(const data::Sample& sample, const Roles& roles) {
  return !(roles.algorithm.mask_truncated && sample.finish == data::FinishReason::kLength);
}

// What a pass reads of a sample whose body is here.
train::Row row_of(const data::Sample& sample, const data::Group& group, const Roles& roles) {
  train::Row row;
  const BatchRows::Body body = roles.bodies.body(sample.id);
  row.prompt = roles.bodies.prompt(group);
  row.response = body.response;
  row.behavior = body.logprobs;
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
      row.fresh = versions_are_ours && roles.bodies.is_sampled_by(sample.id, step.batch.version);
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

// What compare_responses reads of the samples of a batch, which every rank has.
struct Scored {
  std::vector<double> scores, greedy_scores;
  std::vector<int64_t> groups, lengths, trainable;
  std::vector<bool> cut;  // at the length limit
};

// As advantages see it. Errors: UserError for a score that is no finite number.
double shaped_score(const data::Sample& sample, data::GroupId group, const Roles& roles) {
  if (!std::isfinite(sample.score))
    throw UserError("reward", join_text("the score of a sample of group ", value(group), " is ", sample.score), "a finite number");
  return roles.parts.config.reward.shaping().of(sample.score);
}

// Errors: UserError if there is none, as in samples of a run under another algorithm.
double greedy_score(const data::Group& group, const Roles& roles) {
  if (!group.greedy)
    throw UserError("algo.advantage", join_text("is remax, and group ", value(group.id), " came without the score of a greedy answer"),
                    "samples that were rolled out under remax");
  return shaped_score(*group.greedy, group.id, roles);
}

// Errors: as shaped_score and greedy_score.
Scored scored(const StepData& step, const Roles& roles) {
  Scored out;
  for (const data::Group& group : step.batch.groups)
    for (const data::Sample& sample : group.samples) {
      out.scores.push_back(shaped_score(sample, group.id, roles));
      if (roles.algorithm.advantage == algo::Advantage::kRemax) out.greedy_scores.push_back(greedy_score(group, roles));
      out.groups.push_back(value(group.id));
      out.lengths.push_back(roles.bodies.num_tokens(sample.id));
      out.trainable.push_back(is_trainable(sample, roles) ? out.lengths.back() : 0);
      out.cut.push_back(sample.finish == data::FinishReason::kLength);
    }
  return out;
}

// Of rows that this rank trains to those of all, on every rank that trains.
void share_rows(const StepData& step, const Roles& roles, TokenValues mine, TokenValues& all) {
  all.assign(step.rows.size(), {});
  for (size_t i = 0; i < step.mine.size(); ++i) all[step.mine[i]] = std::move(mine[i]);
  comm::exchange_rows(roles.parts.ranks.side(), all, roles.parts.ranks.speaks_for_train());
}

void values(StepData& step, const Roles& roles) {
  share_rows(step, roles, values_of_step(planner::StageKind::kValues, step, roles), step.values);
  for (size_t i : step.mine) {
    const train::Row& row = step.rows[i];
    const size_t tokens = std::min(step.values[i].size(), row.response.size());  // none but on the last pipeline stage
    step.rows[i].values.assign(step.values[i].begin(), step.values[i].begin() + static_cast<std::ptrdiff_t>(tokens));
  }
}

// Of one response whose tokens a policy gives these log-probabilities.
at::Tensor kl_of_tokens(const train::Row& row, std::span<const float> logprobs, algo::KlEstimator estimator, double cut) {
  const auto tensor = [](std::span<const float> values) {
    return at::from_blob(const_cast<float*>(values.data()), {std::ssize(values)}, at::kFloat);
  };
  return algo::kl_estimate(tensor(logprobs), tensor(row.reference), estimator, cut).contiguous();
}

// What each token is rewarded with beside its response's score: -kl_coef KL(policy || reference), or a teacher's log-probability less the
// policy's. That is the policy before the update; the rollout's own values stand for it where no stage computed them. Tells the mean KL of
// the responses.
std::vector<std::vector<float>> token_rewards(StepData& step, const Roles& roles) {
  const algo::Algorithm& algorithm = roles.algorithm;
  const bool distills = algorithm.advantage == algo::Advantage::kDistillation;
  const auto weight = static_cast<float>(distills ? -1 : -algorithm.kl_coef);
  std::vector<std::vector<float>> mine, all;
  for (size_t i = 0; i < step.mine.size(); ++i) {
    const train::Row& row = step.rows[step.mine[i]];
    std::vector<float>& rewards = mine.emplace_back();
    if (row.reference.empty()) continue;  // not the last pipeline stage
    const std::span<const float> logprobs = step.logprobs_before.empty() ? row.behavior : std::span<const float>(step.logprobs_before[i]);
    const at::Tensor kl_T = kl_of_tokens(row, logprobs, distills ? algo::KlEstimator::kK1 : algorithm.kl_estimator, algorithm.kl_cut);
    rewards.assign(kl_T.data_ptr<float>(), kl_T.data_ptr<float>() + kl_T.numel());
  }
  share_rows(step, roles, std::move(mine), all);
  double kl = 0;
  for (std::vector<float>& rewards : all) {
    kl += std::accumulate(rewards.begin(), rewards.end(), 0.0) / static_cast<double>(std::max<size_t>(rewards.size(), 1));
    for (float& reward : rewards) reward *= weight;
  }
  step.kl_reference = kl / static_cast<double>(all.size());
  return all;
}

// What a response compares to is the advantage of each of its tokens, unless these differ.
bool differs_by_token(const algo::Algorithm& algorithm) {
  return algorithm.whitens || algorithm.rewards_tokens() || algorithm.advantage == algo::Advantage::kRemax;
}

// By sample, where `compared` has what its response compares to; of others' rows only where these differ by token.
std::vector<algo::TokenAdvantages> token_advantages(const StepData& step, const Roles& roles, const Scored& batch,
                                                    const std::vector<std::vector<float>>& rewards, std::span<const double> compared) {
  std::vector<algo::TokenAdvantages> out(compared.size());
  for (size_t i = 0; i < compared.size(); ++i) {
    if (!differs_by_token(roles.algorithm) && !std::ranges::binary_search(step.mine, i)) continue;
    std::vector<double> rewards_T(static_cast<size_t>(batch.lengths[i])), values_T;
    if (!rewards.empty()) rewards_T.assign(rewards[i].begin(), rewards[i].end());
    if (!rewards_T.empty()) rewards_T.back() += batch.scores[i];
    double value_after = 0;
    if (!step.values.empty()) {
      const std::vector<float>& values = step.values[i];
      values_T.assign(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rewards_T.size()));
      if (roles.parts.config.critic.bootstrap_truncated && batch.cut[i]) value_after = values.back();
    }
    out[i] = algo::token_advantages({rewards_T, {}, values_T, value_after}, compared[i], roles.algorithm);
  }
  return out;
}

// By the host's function on the first rank of those that train. Errors: UserError for what it throws, or another number of them than
// responses. The same on all ranks.
std::vector<double> host_advantages(const algo::Responses& responses, const Roles& roles) {
  comm::Group& ranks = roles.parts.ranks.side();
  std::vector<double> mine;
  std::optional<comm::Fault> fault;
  try {
    if (ranks.rank() == 0) mine = roles.hooks.advantage(responses);
  } catch (const std::exception& e) {
    fault = comm::Fault{exit_code_of(e), e.what()};
  }
  if (const auto first = comm::first_fault(ranks, fault)) throw UserError("the advantages", first->what, "");
  const std::vector<double> all = comm::values_of_all(ranks, mine);
  if (all.size() != responses.scores.size() || !std::ranges::all_of(all, [](double each) { return std::isfinite(each); }))
    throw UserError("the advantages", join_text("gave ", all.size(), " numbers, or one that is not finite"),
                    join_text("a finite number for each of ", responses.scores.size(), " responses"));
  return all;
}

// Over the trainable tokens of the batch; the others get 0. Where all are alike there is nothing to learn from: they become 0, and not what
// rounding leaves. Nor is a spread that is rounding, beside the values, blown up. Gives the deviation before.
double whiten(std::vector<algo::TokenAdvantages>& tokens, const Scored& batch, const algo::Algorithm& algorithm) {
  constexpr double kRounding = 1e-6;  // of the largest value, where whiten_floor is on: scores may have been of float32
  std::vector<algo::WhitenedTokens> all;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (batch.trainable[i] == 0) continue;
    all.push_back({tokens[i].advantages_T, {}});
    for (const double advantage : tokens[i].advantages_T) low = std::min(low, advantage), high = std::max(high, advantage);
  }
  for (size_t i = 0; i < tokens.size(); ++i)
    if (batch.trainable[i] == 0 || !(low < high)) std::ranges::fill(tokens[i].advantages_T, 0.0);
  if (!(low < high)) return 0;
  if (algorithm.whiten_floor == 0) return algo::whiten(all, 0);
  const double rounding = kRounding * std::max(std::abs(low), std::abs(high));
  return algo::whiten(all, std::max(rounding, algorithm.whiten_floor * algorithm.usual_deviation));
}

// The same on every rank, tokens of other ranks' rows included.
void advantages(StepData& step, const Roles& roles) {
  const algo::Algorithm& algorithm = roles.algorithm;
  Scored batch = scored(step, roles);
  if (algorithm.advantage == algo::Advantage::kDistillation) std::ranges::fill(batch.scores, 0.0);
  std::vector<std::vector<float>> rewards;
  if (algorithm.rewards_tokens()) rewards = token_rewards(step, roles);
  // Responses are compared by all that they are rewarded with.
  std::vector<double> totals = batch.scores;
  for (size_t i = 0; i < rewards.size(); ++i) totals[i] = std::accumulate(rewards[i].begin(), rewards[i].end(), totals[i]);
  const algo::Responses responses{totals, batch.groups, batch.lengths, batch.greedy_scores};
  step.advantages = roles.hooks.advantage ? host_advantages(responses, roles) : algo::compare_responses(responses, algorithm);
  std::vector<algo::TokenAdvantages> tokens = token_advantages(step, roles, batch, rewards, step.advantages);
  if (algorithm.whitens) step.deviation = whiten(tokens, batch, algorithm);
  if (differs_by_token(algorithm))
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::vector<double>& of_tokens = tokens[i].advantages_T;
      step.advantages[i] = std::accumulate(of_tokens.begin(), of_tokens.end(), 0.0) / static_cast<double>(of_tokens.size());
    }
  for (const size_t i : step.mine) {
    const auto too_large = [](double advantage) { return !std::isfinite(static_cast<float>(advantage)); };
    if (const auto at = std::ranges::find_if(tokens[i].advantages_T, too_large); at != tokens[i].advantages_T.end())
      throw UserError("reward", join_text("the score ", batch.scores[i], " gives an advantage of ", *at, ", and float32 ends at 3.4e38"),
                      "smaller scores, such as by reward.scale");
    step.rows[i].advantages.assign(tokens[i].advantages_T.begin(), tokens[i].advantages_T.end());
    step.rows[i].returns.assign(tokens[i].returns_T.begin(), tokens[i].returns_T.end());
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
