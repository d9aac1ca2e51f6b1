// SPDX-License-Identifier: Apache-2.0
// What scheduling a step costs the host: the scheduler alone, without a model, on groups that come, answer and go. A step is a plan
// and its completion. Tokens are random numbers; lengths of answers are ragged, so that groups start while others decode.
#include "stages/scheduler.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/rng.h"
#include "report.h"
#include "tandem/rollout/scheduler.h"

namespace tandem::bench {
namespace {

constexpr int64_t kBatches = 4;   // as many sequences as run at a time, so often

struct Scheduled {
  double seconds = 0, decode_seconds = 0;   // decode: steps of one token a sequence, with all slots taken
  int64_t steps = 0, decode_steps = 0, tokens = 0;
};

Scheduled scheduled(const SchedulerOptions& o) {
  const int64_t running = o.sequences;
  rollout::Options options;
  options.max_running = running;
  options.kv_block_tokens = 16;
  const int64_t blocks = (o.prompt_len + o.new_tokens) / options.kv_block_tokens + 2;
  rollout::Scheduler scheduler(options);
  scheduler.open(blocks * (running + 1));
  RandomStream random(static_cast<uint64_t>(o.seed), 0);
  std::map<rollout::SequenceId, int64_t> left;
  for (int64_t i = 0; i < kBatches * running; i += o.gens) {
    std::vector<int32_t> prompt;
    for (int64_t t = 0; t < o.prompt_len; ++t) prompt.push_back(static_cast<int32_t>(random.below(32000)));
    for (int64_t s = i; s < std::min(i + o.gens, kBatches * running); ++s) {
      scheduler.submit(rollout::SequenceId{s}, prompt);
      left[rollout::SequenceId{s}] = o.new_tokens / 2 + random.below(o.new_tokens / 2 + 1);
    }
  }
  Scheduled out;
  std::vector<rollout::Outcome> outcomes;
  for (; !scheduler.empty(); ++out.steps) {
    const double begin = now_s();
    const rollout::Plan plan = scheduler.plan();
    double seconds = now_s() - begin;
    TANDEM_CHECK(!plan.ids.empty(), "a step without tokens");
    outcomes.clear();
    for (const auto& draw : plan.draws)
      outcomes.push_back({draw.sequence, static_cast<int32_t>(random.below(32000)), --left.at(draw.sequence) <= 0});
    const double drawn = now_s();
    scheduler.complete(plan, outcomes);
    seconds += now_s() - drawn;
    out.seconds += seconds;
    out.tokens += std::ssize(outcomes);
    if (std::ssize(plan.ids) != running || std::ssize(plan.runs) != running) continue;
    out.decode_seconds += seconds;
    ++out.decode_steps;
  }
  for (const auto& [id, tokens] : left) TANDEM_CHECK(tokens == 0, "sequence ", value(id), " has ", tokens, " tokens too few");
  TANDEM_CHECK(scheduler.blocks().num_free() == scheduler.blocks().ledger().num_blocks(), "blocks are lost");
  return out;
}

}  // namespace

void describe(OptionVisitor& field, SchedulerOptions& o) {
  describe(field, static_cast<Common&>(o));
  field("sequences", o.sequences, "Sequences that run at a time", at_least(1));
  field("gens", o.gens, "Responses per prompt", at_least(1));
  field("prompt_len", o.prompt_len, "Tokens of a prompt", at_least(1));
  field("new", o.new_tokens, "Tokens of a response: this or down to half of it", at_least(2));
  field("seed", o.seed, "Seed of the workload", at_least(0));
}

nlohmann::json scheduler(const SchedulerOptions& o) {
  Figures figures;
  for (int64_t i = 0; i <= o.repeats; ++i) {
    const Scheduled all = scheduled(o);
    if (i == 0) continue;  // the warm-up
    figures["us_per_step"].push_back(1e6 * all.seconds / static_cast<double>(all.steps));
    figures["decode_us_per_step"].push_back(1e6 * all.decode_seconds / static_cast<double>(std::max<int64_t>(1, all.decode_steps)));
    figures["us_per_token"].push_back(1e6 * all.seconds / static_cast<double>(all.tokens));
  }
  return report("scheduler", {{"sequences", o.sequences}, {"gens", o.gens}, {"prompt_len", o.prompt_len}, {"new", o.new_tokens},
                              {"seed", o.seed}, {"repeats", o.repeats}}, figures);
}

}  // namespace tandem::bench
