// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/stage/step_record.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "tandem/algo/advantage.h"
#include "tandem/algo/algorithm.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/base/strings.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/scalar.h"
#include "tandem/data/shaping.h"
#include "tandem/reward/scorer.h"

namespace tandem::runtime {
namespace {

void record_rewards(monitor::Recorder& recorder, const data::Batch& batch, const reward::Options& options) {
  const data::Shaping shaping = options.shaping();
  double greedy = 0, num_greedy = 0, n = 0;
  std::map<std::string, double> parts;
  if (options.on_error == "zero") parts[reward::kFailedPart] = 0;
  double largest = 0;
  for (const data::Group& group : batch.groups)
    for (const data::Sample& s : group.samples)
      for (const auto& [name, score] : s.parts) largest = std::max(largest, std::abs(score));
  const double factor = algo::overflow_scale(largest);
  int64_t flat = 0;
  for (const data::Group& group : batch.groups) {
    for (const data::Sample& s : group.samples) {
      n += 1;
      for (const auto& [name, score] : s.parts) parts[name] += score * factor;
    }
    if (group.greedy) greedy += group.greedy->score, num_greedy += 1;
    flat += data::compares_alike(group, shaping);
  }
  const BatchScores scores = scores_of(batch);
  recorder.set("reward/mean", scores.mean);
  recorder.set("reward/std", scores.deviation);
  if (num_greedy > 0) recorder.set("reward/greedy_mean", greedy / num_greedy);
  for (const auto& [name, total] : parts) recorder.set("reward/" + name, total / n / factor);
  recorder.set("data/groups_without_signal", static_cast<double>(flat));
}

// The histogram of lags goes to `staleness` at least, whichever of them there are.
void record_lengths(monitor::Recorder& recorder, const data::Batch& batch, const BatchRows& bodies, int64_t staleness) {
  double tokens = 0, n = 0, most = 0, truncated = 0, prompt_tokens = 0, lag_sum = 0, lag_max = 0;
  std::map<int64_t, int64_t> histogram;
  for (int64_t lag = 0; lag <= staleness; ++lag) histogram[lag] = 0;
  for (const data::Group& group : batch.groups) {
    const auto lag = data::lag(group, batch.version);
    lag_sum += static_cast<double>(lag), lag_max = std::max(lag_max, static_cast<double>(lag));
    ++histogram[lag];
    for (const data::Sample& s : group.samples) {
      const auto length = static_cast<double>(bodies.num_tokens(s.id));
      tokens += length, n += 1, most = std::max(most, length), truncated += s.finish == data::FinishReason::kLength;
      prompt_tokens += static_cast<double>(bodies.num_prompt_tokens(group));
    }
  }
  recorder.set("data/response_tokens_mean", tokens / n);
  recorder.set("data/response_tokens_max", most);
  recorder.set("data/prompt_tokens_mean", prompt_tokens / n);
  recorder.set("data/truncated_fraction", truncated / n);
  recorder.set("staleness/lag_mean", lag_sum / static_cast<double>(batch.groups.size()));
  recorder.set("staleness/lag_max", lag_max);
  for (const auto& [lag, groups] : histogram) recorder.set("staleness/lag_" + std::to_string(lag), static_cast<double>(groups));
}

void record_correction(monitor::Recorder& recorder, const train::CorrectionReport& r) {
  recorder.set("correction/weight_mean", r.weight_mean);
  recorder.set("correction/weight_max", r.weight_max);
  recorder.set("correction/clipped_fraction", r.clipped_fraction);
  recorder.set("correction/rejected_fraction", r.rejected_fraction);
  recorder.set("correction/kl", r.kl);
  recorder.set("correction/chi2", r.chi2);
}

// Without a token that the weights before the update have sampled there is no gap to tell.
void record_gap(monitor::Recorder& recorder, const train::StepReport& r) {
  recorder.set("gap/tokens", static_cast<double>(r.gap_tokens));
  if (!r.gap) return;
  recorder.set("gap/mean", r.gap->mean);
  recorder.set("gap/p99", r.gap->p99);
  recorder.set("gap/max", r.gap->max);
}

void record_update(monitor::Recorder& recorder, const train::StepReport& r, const algo::Algorithm& algorithm, bool skips_nonfinite) {
  recorder.set("actor/loss", r.loss);
  recorder.set("actor/grad_norm", r.grad_norm);
  recorder.set("actor/lr", r.lr);
  recorder.set("actor/entropy", r.entropy);
  recorder.set("actor/clip_fraction", r.clip_fraction);
  if (r.router_load_max) recorder.set("actor/router_load_max", *r.router_load_max);
  if (r.router_balance) recorder.set("actor/router_balance_loss", *r.router_balance);
  if (r.router_z) recorder.set("actor/router_z_loss", *r.router_z);
  if (algorithm.has_kl_loss()) recorder.set("actor/kl_ref", r.kl_ref);
  if (algorithm.correction.active()) record_correction(recorder, r.correction);
  else if (algorithm.off_policy_delta > 0) recorder.set("correction/rejected_fraction", r.correction.rejected_fraction);
  if (r.kl_rollout_train) recorder.set("actor/kl_rollout_train", *r.kl_rollout_train);
  record_gap(recorder, r);
  recorder.set("actor/ratio_max", r.ratio_max);
  if (skips_nonfinite) recorder.set("actor/nonfinite_updates", static_cast<double>(r.nonfinite));
}

void record_critic(monitor::Recorder& recorder, const train::StepReport& r, bool skips_nonfinite) {
  recorder.set("critic/loss", r.loss);
  recorder.set("critic/grad_norm", r.grad_norm);
  recorder.set("critic/lr", r.lr);
  recorder.set("critic/clip_fraction", r.clip_fraction);
  recorder.set("critic/values_mean", r.value.values_mean);
  recorder.set("critic/explained_variance", r.value.explained_variance);
  if (skips_nonfinite) recorder.set("critic/nonfinite_updates", static_cast<double>(r.nonfinite));
}

constexpr int64_t kInFile = -1;  // of what a rank tells of its part: else the bytes that it sends, 0 if it has none

// What the ranks send, end to end on the first one, by what each of them told. Collective.
std::vector<std::byte> sent_to_first(comm::Group& world, std::span<const std::byte> mine, std::span<const int64_t> told) {
  std::vector<int64_t> send(told.size()), receive(told.size());
  send[0] = std::ssize(mine);
  int64_t total = 0;
  for (size_t rank = 0; rank < told.size() && world.rank() == 0; ++rank) total += receive[rank] = std::max<int64_t>(told[rank], 0);
  std::vector<std::byte> all(static_cast<size_t>(total));
  world.all_to_all_v(mine, send, all, receive);
  return all;
}

// Each sample from the rank that speaks for those that trained it: by a file in the run folder, or a message where there is no room for
// one. So the first rank waits for no rows, and its writer reads the files beside the run. Collective.
void record_samples(const StepData& step, const Roles& roles) {
  const policy::Ranks& ranks = roles.parts.ranks;
  const std::string& run_dir = roles.parts.config.run.dir;
  SamplePart mine;
  if (ranks.speaks_for_train()) mine = {roles.bodies.complete_rows(step.batch.groups, step.mine), step.report.logprobs};
  std::vector<std::byte> message;
  int64_t tells = 0;
  if (!ranks.is_first() && !mine.groups.empty()) {
    message = pack(mine);
    try {
      write_part(part_file(run_dir, step.id, ranks.world.rank()), message);
      message.clear();
      tells = kInFile;
    } catch (const PeerError& e) {
      log::warning(e.what(), "; the samples go to rank 0 by message");
      tells = std::ssize(message);
    }
  }
  const std::vector<int64_t> told = comm::values_of_all(ranks.world, std::vector<int64_t>{tells});
  std::vector<std::byte> sent;
  if (std::ranges::any_of(told, [](int64_t each) { return each > 0; })) sent = sent_to_first(ranks.world, message, told);
  if (!roles.samples) return;
  StepParts parts;
  if (!mine.groups.empty()) parts.here.push_back(std::move(mine));
  size_t from = 0;
  for (size_t rank = 0; rank < told.size(); ++rank) {
    if (told[rank] == kInFile) parts.files.push_back(part_file(run_dir, step.id, static_cast<int>(rank)));
    if (told[rank] <= 0) continue;
    parts.here.push_back(unpack_part(std::span(sent).subspan(from, static_cast<size_t>(told[rank]))));
    from += static_cast<size_t>(told[rank]);
  }
  roles.samples->append({step.id, step.batch.version, step.batch.groups}, step.advantages, std::move(parts));
}

}  // namespace

BatchScores scores_of(const data::Batch& batch) {
  std::vector<double> all;
  double largest = 0;
  for (const data::Group& group : batch.groups)
    for (const data::Sample& s : group.samples) all.push_back(s.score), largest = std::max(largest, std::abs(s.score));
  const auto n = static_cast<double>(all.size());
  const double factor = algo::overflow_scale(largest);
  double sum = 0, squares = 0;
  for (const double score : all) sum += score * factor;
  for (const double score : all) squares += (score * factor - sum / n) * (score * factor - sum / n);
  return {sum / n / factor, std::sqrt(squares / n) / factor, std::sqrt(squares) / n / factor};
}

std::vector<train::Row> fresh_beyond(const StepData& step, const Roles& roles) {
  const auto is_fresh = [&](const data::Sample& s) {
    return roles.bodies.num_tokens(s.id) > 0 && roles.bodies.facts(s.id).are_of(step.batch.version);
  };
  const auto has_fresh = [&](const data::Group& group) { return std::ranges::any_of(group.samples, is_fresh); };
  if (std::ranges::any_of(step.batch.groups, has_fresh)) return {};
  const train::Options& options = roles.parts.config.train;
  int64_t rows = 8, tokens = std::min(options.micro_batch_tokens, options.logprob_micro_batch_tokens);
  std::vector<data::Group> lent;
  std::vector<bool> is_measured;  // of each of their rows
  for (data::Group& group : data::bare_heads(roles.source.beyond_batch(), roles.parts.config.schedule.queue.group_size)) {
    std::vector<bool> chosen;
    for (const data::Sample& s : group.samples) {
      const int64_t length = roles.bodies.num_prompt_tokens(group) + roles.bodies.num_tokens(s.id);
      chosen.push_back(rows > 0 && is_fresh(s) && length <= tokens);
      if (chosen.back()) --rows, tokens -= length;
    }
    if (std::ranges::find(chosen, true) == chosen.end()) continue;
    is_measured.insert(is_measured.end(), chosen.begin(), chosen.end());
    lent.push_back(std::move(group));
  }
  if (lent.empty()) return {};
  roles.bodies.lend(lent, std::vector<int>(lent.size(), 0));
  std::vector<train::Row> all, measured;
  fail_alike(roles.parts.ranks.world, [&] {
    if (roles.parts.ranks.train_dp_rank() == 0) all = rows_of_groups(lent, roles);
  });
  for (size_t row = 0; row < all.size(); ++row)
    if (is_measured[row]) measured.push_back(std::move(all[row]));
  return measured;
}

algo::GapSums gap_of(const std::vector<train::Row>& rows, const Roles& roles) {
  algo::GapSums gap;
  comm::Group& ranks = roles.parts.ranks.side();
  if (!comm::any_of(ranks, !rows.empty())) return gap;
  const TokenValues now = values_of_rows(planner::StageKind::kOldLogprob, rows, roles);
  for (size_t i = 0; i < now.size() && roles.parts.ranks.speaks_for_train(); ++i)
    for (size_t t = 0; t < now[i].size(); ++t)
      if (rows[i].is_sampled(t)) gap.add(std::abs(static_cast<double>(rows[i].behavior[t]) - now[i][t]));
  comm::sum_fields(ranks, gap);
  gap.max = comm::max_over(ranks, gap.max);
  return gap;
}

void record_throughput(monitor::Recorder& recorder, double tokens_per_s, int num_devices) {
  recorder.set("throughput/tokens_per_s", tokens_per_s);
  recorder.set("throughput/tokens_per_s_per_device", tokens_per_s / num_devices);
}

void record_idle(comm::Group& world, double idle_s, monitor::Recorder& recorder) {
  if (world.size() == 1) return;
  const std::vector<double> all = comm::values_of_all(world, std::vector<double>{idle_s});
  for (size_t rank = 0; rank < all.size(); ++rank)
    recorder.set(join_text("idle/rank_", rank), std::min(1.0, all[rank] / recorder.current("time/step_s")));
}

void record_spans(comm::Group& world, const std::vector<StageSpan>& mine, monitor::Recorder& recorder) {
  std::ostringstream text;
  text.precision(17);
  for (const StageSpan& span : mine) text << span.name << ' ' << span.begin_s << ' ' << span.end_s << ' ' << span.waited_s << '\n';
  const std::vector<std::string> all = comm::texts_of_all(world, text.str());
  for (size_t rank = 0; rank < all.size() && world.rank() == 0; ++rank) {
    std::istringstream lines(all[rank]);
    for (StageSpan span; lines >> span.name >> span.begin_s >> span.end_s >> span.waited_s;)
      recorder.span(span.name, join_text("rank ", rank), span.begin_s, span.end_s, span.waited_s);
  }
}

void record_step(const StepData& step, const Roles& roles) {
  monitor::Recorder& recorder = roles.parts.recorder;
  record_rewards(recorder, step.batch, roles.parts.config.reward);
  record_lengths(recorder, step.batch, roles.bodies, roles.parts.config.staleness());
  if (roles.early) {
    recorder.set("data/groups_early", static_cast<double>(step.num_early));
    recorder.set("time/early_s", roles.early->take_seconds());
  }
  record_update(recorder, step.report, roles.algorithm, roles.parts.config.train.nonfinite == "skip");
  if (roles.algorithm.whitens) recorder.set("actor/advantage_std", step.deviation);
  if (step.kl_reference) recorder.set("actor/kl_ref", *step.kl_reference);
  if (roles.parts.config.algo.kl_target > 0) recorder.set("actor/kl_coef", roles.algorithm.kl_coef);
  if (step.critic_report) record_critic(recorder, *step.critic_report, roles.parts.config.critic.train.nonfinite == "skip");
  if (roles.algorithm.updates.several()) {
    recorder.set("actor/updates", static_cast<double>(step.num_updates));
    recorder.set("actor/kl_old", step.report.kl_old);
  }
  record_samples(step, roles);
  const double seconds = now_s() - step.begin_s;
  recorder.set("policy_version", static_cast<double>(value(step.after())));
  recorder.set("time/step_s", seconds);
  recorder.add("time/wait_s", 0);
  record_throughput(recorder, step.report.sequence_tokens / seconds, roles.parts.ranks.world.size());
  recorder.set("throughput/train_tokens_per_s", step.report.pass_tokens / std::max(1e-9, recorder.current("time/train_s")));
  recorder.set("data/computed_tokens", step.report.computed_tokens);
  roles.source.record(recorder);
}

}  // namespace tandem::runtime
