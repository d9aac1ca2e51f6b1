// SPDX-License-Identifier: Apache-2.0
#include "stages/stale.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "report.h"
#include "stages/whole_run.h"
#include "tandem/config/layouts.h"
#include "tandem/planner/simulate.h"

namespace tandem::bench {
namespace {

using nlohmann::json;

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(std::max<size_t>(values.size(), 1));
}

// What a token step takes, by the tokens that it draws, as a run measures it.
class TokenSteps {
 public:
  void add(int64_t tokens, double seconds) {
    const std::lock_guard lock(mutex_);
    auto& [count, sum] = steps_[tokens];
    count += 1, sum += seconds;
  }
  // Between two that were measured on a straight line, else the nearest.
  double seconds(int64_t tokens) const {
    const auto mean_of = [](const auto& each) { return each.second.second / each.second.first; };
    const auto above = steps_.lower_bound(tokens);
    if (above == steps_.end()) return mean_of(*std::prev(above));
    if (above->first == tokens || above == steps_.begin()) return mean_of(*above);
    const auto below = std::prev(above);
    const double share = static_cast<double>(tokens - below->first) / static_cast<double>(above->first - below->first);
    return (1 - share) * mean_of(*below) + share * mean_of(*above);
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::pair<double, double>> steps_;  // number, seconds
};

// Steps that count, and what each rank did in them.
struct Measured {
  std::vector<double> step_s, tokens_per_s;
  std::vector<std::vector<double>> idle;  // by rank, then step
  double mean_step_s = 0, most_work_s = 0;  // work: of the rank that waits least
  double predicted_step_s = 0;
};

// Of the counted lines of a timeline: what a stage takes once the last of its ranks has come, and what lies between two steps.
planner::Costs costs_of(const std::vector<json>& timeline, int64_t first_step) {
  planner::Costs costs;
  std::map<std::string, std::vector<double>> stages;
  std::vector<double> between;
  double ended_s = 0;
  for (const json& line : timeline) {
    std::map<std::string, std::pair<double, double>> last;  // begin and end, of the last rank
    double begin_s = 1e300, end_s = 0;
    for (const json& rank : line.at("ranks"))
      for (const json& stage : rank) {
        auto& [begins, ends] = last[stage.at(0).get<std::string>()];
        begins = std::max(begins, stage.at(1).get<double>() / 1e3), ends = std::max(ends, stage.at(2).get<double>() / 1e3);
        begin_s = std::min(begin_s, stage.at(1).get<double>() / 1e3), end_s = std::max(end_s, ends);
      }
    const double at_s = line.at("begin_s");
    if (line.at("step") > first_step) between.push_back(at_s + begin_s - ended_s);
    ended_s = at_s + end_s;
    if (line.at("step") < first_step) continue;
    for (const auto& [name, span] : last) stages[name].push_back(span.second - span.first);
  }
  for (const auto& [name, seconds] : stages) costs.stage_s[name] = mean(seconds);
  costs.between_s = std::max(0.0, mean(between));
  return costs;
}

// The run under a virtual clock.
double predicted_step_s(const StaleOptions& o, const config::RunConfig& config, planner::Costs costs, const TokenSteps& token_steps,
                        int64_t warm_up) {
  costs.token_step_s = [&](int64_t rows) { return token_steps.seconds(rows); };
  const config::Layouts layouts = config::layouts_of(config, static_cast<int>(o.ranks));
  const planner::Replicas replicas{layouts.placement, layouts.rollout, config.is_free(), config.round_steps()};
  queue::StalenessRule rule = config.schedule.queue.staleness_rule();
  rule.staleness = config.staleness();
  const planner::Workload workload{rule, o.gens, o.lengths, config.rollout.engine.max_running, o.prompt_len};
  return planner::simulate(config::schedule_of(config, layouts, false), workload, replicas, costs, {o.steps + warm_up, o.steps}).step_s;
}

Measured measured(const StaleOptions& o, int64_t staleness) {
  const int64_t warm_up = 1 + staleness;  // until as many groups are under way as ever
  const Shape shape{o.prompts, o.gens, o.prompt_len, *std::ranges::max_element(o.lengths), o.steps + warm_up};
  Settings settings = {{"parallel.placement", o.placement}, {"parallel.ranks", std::to_string(o.ranks)},
                       {"parallel.train_layout", o.train_layout}, {"parallel.rollout_layout", o.rollout_layout}};
  if (staleness > 0) settings.insert(settings.end(), {{"schedule.kind", "stale"}, {"schedule.staleness", std::to_string(staleness)}});
  runtime::Hooks hooks;
  hooks.most_tokens = [&](data::SampleId id) { return o.lengths[static_cast<size_t>(value(id)) % o.lengths.size()]; };
  TokenSteps token_steps;
  hooks.stepped = [&](int64_t tokens, double seconds) { token_steps.add(tokens, seconds); };
  Measured all;
  all.idle.resize(static_cast<size_t>(o.ranks));
  std::vector<double> work_s(all.idle.size());
  const RunLines lines = lines_of_run(o, shape, settings, hooks);
  for (const json& m : lines.metrics) {
    TANDEM_CHECK(m.at("staleness/lag_max") <= staleness, "a sample lags ", m.at("staleness/lag_max").dump());
    TANDEM_CHECK(m.at("data/response_tokens_max") <= shape.new_tokens, "a response is too long");
    TANDEM_CHECK(std::isfinite(m.at("actor/loss").get<double>()), "loss");
    if (m.at("step") <= warm_up) continue;
    const double step_s = m.at("time/step_s");
    all.step_s.push_back(step_s);
    all.tokens_per_s.push_back(m.at("throughput/tokens_per_s"));
    for (size_t rank = 0; rank < all.idle.size(); ++rank) {
      all.idle[rank].push_back(o.ranks == 1 ? 0.0 : m.at("idle/rank_" + std::to_string(rank)).get<double>());
      work_s[rank] += step_s * (1 - all.idle[rank].back());
    }
  }
  all.mean_step_s = mean(all.step_s);
  all.most_work_s = *std::ranges::max_element(work_s) / static_cast<double>(all.step_s.size());
  all.predicted_step_s = predicted_step_s(o, lines.config, costs_of(lines.timeline, warm_up + 1), token_steps, warm_up);
  return all;
}

}  // namespace

void describe(OptionVisitor& field, StaleOptions& o) {
  field("placement", o.placement,
        "split: half of the ranks train, the others generate; colocated: all do both in turns; mixed: half do, the others generate",
        one_of({"split", "colocated", "mixed"}));
  field("staleness", o.staleness, "Updates that a sample may lag behind", at_least(0));
  field("prompts", o.prompts, "Prompts per step", at_least(1));
  field("gens", o.gens, "Responses per prompt", at_least(1));
  field("prompt_len", o.prompt_len, "Tokens of a prompt", at_least(1));
  field("steps", o.steps, "Measured steps; one more than the staleness come first", at_least(1));
  field("ranks", o.ranks, "Ranks as threads", at_least(1));
  field("train_layout", o.train_layout, "parallel.train_layout; left out: data-parallel");
  field("rollout_layout", o.rollout_layout, "parallel.rollout_layout; left out: as training, or data-parallel");
  field("seed", o.seed, "Seed of the workload", at_least(0));
}

json stale(const StaleOptions& o) {
  if (o.lengths.empty())
    throw UserError("--lengths", "is missing", "a JSON array of response lengths, such as bench/lengths/stale-32x512.json");
  const Measured sync = measured(o, 0), with = o.staleness == 0 ? sync : measured(o, o.staleness);
  Figures figures = {{"step_s", with.step_s}, {"sync_step_s", sync.step_s}, {"tokens_per_s", with.tokens_per_s}};
  std::vector<double> idle_share;
  for (const std::vector<double>& of_rank : with.idle) {
    figures["idle_share_" + std::to_string(idle_share.size())] = of_rank;
    idle_share.push_back(mean(of_rank));
  }
  const json conditions = {{"model", o.model}, {"dtype", o.dtype}, {"parity", o.parity}, {"seed", o.seed}, {"threads", o.threads},
                           {"placement", o.placement}, {"staleness", o.staleness}, {"prompts", o.prompts}, {"gens", o.gens},
                           {"prompt_len", o.prompt_len}, {"steps", o.steps}, {"ranks", o.ranks}, {"train_layout", o.train_layout},
                           {"rollout_layout", o.rollout_layout},
                           {"lengths", lengths_summary(o.lengths)}};
  json object = report("stale", conditions, figures);
  object["idle_share"] = idle_share;
  object["ratio"] = sync.mean_step_s / with.mean_step_s;
  object["allowed_ratio"] = sync.mean_step_s / with.most_work_s;
  object["mean_step_s"] = with.mean_step_s;
  object["predicted_step_s"] = with.predicted_step_s;
  object["mean_sync_step_s"] = sync.mean_step_s;
  object["predicted_sync_step_s"] = sync.predicted_step_s;
  return object;
}

}  // namespace tandem::bench
