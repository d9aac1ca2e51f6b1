// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/stale.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/bench/report.h"
#include "tandem/bench/whole_run.h"

namespace tandem::bench {
namespace {

using nlohmann::json;

// Steps that count, and what each rank did in them.
struct Measured {
  std::vector<double> step_s, tokens_per_s;
  std::vector<std::vector<double>> idle;  // by rank, then step
  double mean_step_s = 0, most_work_s = 0;  // work: of the rank that waits least
};

Measured measured(const StaleOptions& o, int64_t staleness) {
  const int64_t warm_up = 1 + staleness;  // until as many groups are under way as ever
  const Shape shape{o.prompts, o.gens, o.prompt_len, *std::ranges::max_element(o.lengths), o.steps + warm_up};
  Settings settings = {{"parallel.placement", o.placement}, {"parallel.ranks", std::to_string(o.ranks)},
                       {"parallel.train_layout", o.train_layout}, {"parallel.rollout_layout", o.rollout_layout}};
  if (staleness > 0) settings.insert(settings.end(), {{"schedule.kind", "stale"}, {"schedule.staleness", std::to_string(staleness)}});
  runtime::Hooks hooks;
  hooks.most_tokens = [&](data::SampleId id) { return o.lengths[static_cast<size_t>(value(id)) % o.lengths.size()]; };
  Measured all;
  all.idle.resize(static_cast<size_t>(o.ranks));
  std::vector<double> work_s(all.idle.size());
  for (const json& m : metrics_of_run(o, shape, settings, hooks)) {
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
  const auto steps = static_cast<double>(all.step_s.size());
  all.mean_step_s = std::accumulate(all.step_s.begin(), all.step_s.end(), 0.0) / steps;
  all.most_work_s = *std::ranges::max_element(work_s) / steps;
  return all;
}

}  // namespace

void describe(OptionVisitor& field, StaleOptions& o) {
  field("placement", o.placement, "split: half of the ranks train, the others generate; colocated: all do both in turns; mixed: half of them do, the others generate",
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
    idle_share.push_back(std::accumulate(of_rank.begin(), of_rank.end(), 0.0) / static_cast<double>(of_rank.size()));
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
  return object;
}

}  // namespace tandem::bench
