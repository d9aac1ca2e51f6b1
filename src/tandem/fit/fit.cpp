// SPDX-License-Identifier: Apache-2.0
#include "tandem/fit/fit.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <utility>

#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/base/strings.h"
#include "tandem/comm/agree.h"
#include "tandem/config/algorithm.h"
#include "tandem/device/memory_limit.h"
#include "tandem/fit/held.h"
#include "tandem/fit/probe.h"
#include "tandem/planner/memory.h"
#include "tandem/policy/critic.h"
#include "tandem/reward/rule.h"
#include "tandem/serve/prompt_stream.h"

namespace tandem::fit {
namespace {

void refuse_unknown(const config::RunConfig& c) {
  const auto refuse = [](const std::string& what) { throw UserError("--fit", what, "the sizes by hand, or a recipe without"); };
  if (c.parallel.has_sides()) refuse("measures ranks that all train and generate, and parallel.placement is " + c.parallel.placement);
  if (!c.reward.model.empty()) refuse("measures no reward model, and reward.model names one");
}

// The longest prompt of all sets, and the longest response that fits behind it.
Longest longest_of(const config::RunConfig& c, const Subject& subject) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(subject.model_dir);
  const serve::PromptText text{tokenizer, subject.model_dir};
  Longest longest{serve::PromptStream(c.data, data::Split::kTrain, text).longest_prompt(), c.rollout.sampling.max_new_tokens};
  if (!c.data.eval.empty() && (c.eval.before || c.eval.after || c.eval.every_steps > 0))
    longest.eval = std::min(subject.model.max_positions, c.eval.sampling.max_new_tokens +
                                                             serve::PromptStream(c.data, data::Split::kHeldOut, text).longest_prompt());
  longest.prompt = std::min(longest.prompt, std::max<int64_t>(1, subject.model.max_positions - 1));
  longest.response = std::clamp<int64_t>(longest.response, 1, subject.model.max_positions - longest.prompt);
  return longest;
}

// Bytes of what passes share the device with. `all_of_it`: what leaves counts, too.
struct Held {
  int64_t training = 0, rolling = 0;
};
Held held_of(ByOwner by_owner, const config::RunConfig& c, bool all_of_it) {
  using enum planner::Resident;
  by_owner.erase("kv_cache");
  by_owner.erase(train::kActivations);
  if (all_of_it) return {sum_of(by_owner), sum_of(by_owner)};
  // While the actor is trained a critic counts as there, also where it leaves.
  return {sum_of(on_device(by_owner, {kTrainWeights, kGradients, kOptimizer, kCriticWeights}, c)),
          sum_of(on_device(by_owner, {kRolloutWeights, kKvCache}, c))};
}

// The probe has all on the device, and no budget: what leaves is reckoned.
config::RunConfig for_probe(const config::RunConfig& c) {
  config::RunConfig probed = c;
  probed.memory = {};
  probed.parallel.placement = "colocated";
  return probed;
}

// The largest of all ranks, the least of their budgets. Collective.
void agree(Measured& m, comm::Group& world) {
  const std::map<std::string, double*> numbers = {{"train_fixed", &m.train.fixed},   {"train", &m.train.per_token},
                                                  {"score_fixed", &m.score.fixed},   {"score", &m.score.per_token},
                                                  {"decode_fixed", &m.decode.fixed}, {"decode", &m.decode.per_token},
                                                  {"value_train_fixed", &m.value_train.fixed},
                                                  {"value_train", &m.value_train.per_token},
                                                  {"values_fixed", &m.values.fixed}, {"values", &m.values.per_token}};
  const std::map<std::string, int64_t*> counts = {{"held", &m.held_bytes}, {"rolling", &m.held_rolling_bytes}, {"kv", &m.kv_token_bytes},
                                                  {"block_tokens", &m.block_tokens}};
  std::map<std::string, double> mine = {{"budget", -static_cast<double>(m.budget_bytes)}};
  for (const auto& [name, number] : numbers) mine[name] = *number;
  for (const auto& [name, count] : counts) mine[name] = static_cast<double>(*count);
  const std::map<std::string, double> all = comm::largest_of_all(world, mine);
  for (const auto& [name, number] : numbers) *number = all.at(name);
  for (const auto& [name, count] : counts) *count = static_cast<int64_t>(all.at(name));
  m.budget_bytes = static_cast<int64_t>(-all.at("budget"));
}

void add_work(Measured& m, const config::RunConfig& c, const policy::Ranks& ranks, const Longest& longest) {
  const queue::Options& q = c.schedule.queue;
  const auto share = [&](int64_t dp) { return (q.groups_per_step + dp - 1) / dp * q.group_size; };
  m.context_tokens = longest.prompt + longest.response;
  m.eval_tokens = longest.eval;
  m.sequences = share(ranks.rollout_layout.dp) * (1 + c.staleness());
  m.tokens = share(ranks.train_layout.dp) * (m.context_tokens - 1);
}

// The budget before anything is loaded. Errors: UserError if even what training holds is more.
void set_budget(Measured& m, const config::RunConfig& c, comm::Group& world) {
  const device::MemoryLimit limit = device::memory_limit();
  m.budget_bytes = limit.bytes / comm::ranks_per_machine(world);
  m.budget_from = limit.from + (world.size() > 1 ? ", shared by the ranks of a machine" : "");
  const int64_t device = c.memory.device_mib << 20;
  if (device == 0 || device >= m.budget_bytes) return;
  m.budget_bytes = device;
  m.budget_from = "memory.device_mib";
}

void check_held(const Measured& m, const config::RunConfig& c, const policy::Ranks& ranks, const Subject& subject) {
  const auto memory_of = [&](const model::ModelConfig& model, const model::LoraOptions& lora, const train::Options& options) {
    planner::TrainingPlan plan{model, ranks.train_layout, c.model.dtype == "bfloat16" ? 2 : 4, lora};
    plan.swap_chunk_elements = options.swap_optimizer ? train::kSwapChunkElements : 0;
    return planner::training_memory(plan, 0);
  };
  std::vector<planner::TrainingMemory> roles = {memory_of(subject.model, c.model.lora, c.train)};
  if (config::algorithm_of(c).needs_critic())
    roles.push_back(memory_of(policy::critic_config(c, ranks.train_layout, subject.model), {}, c.critic.train));
  int64_t bytes = 0;
  std::string text;
  for (const planner::TrainingMemory& memory : roles) {
    for (const auto& [owner, held] : memory.device) bytes += held;
    text += (text.empty() ? "" : "; of the critic ") + planner::to_text(memory);
  }
  if (bytes > m.budget_bytes)
    throw UserError("--fit",
                    join_text("training holds ", text, "; there are ", bytes_text(m.budget_bytes), ", ", m.budget_from),
                    "a smaller model, model.lora_rank, train.swap_optimizer, model.dtype: bfloat16, or more ranks");
}

// The number of running sequences by speed, at most what the memory allows.
void choose_by_speed(Probe& probe, std::vector<Decision>& decisions, const std::vector<std::string>& given) {
  Decision& running = *std::ranges::find(decisions, std::string("rollout.max_running"), &Decision::option);
  if (std::ranges::find(given, running.option) != given.end()) return;
  const std::vector<int64_t> candidates = running_candidates(running.is);
  std::vector<double> speeds;
  for (const int64_t n : candidates) speeds.push_back(probe.decode_tokens_s(n));
  const int64_t most = running.is;
  running.is = quickest(candidates, speeds);
  for (size_t i = 0; i < candidates.size(); ++i)
    running.measured += join_text(i == 0 ? "" : ", ", candidates[i], ": ", std::llround(speeds[i]), " tokens/s");
  if (running.is < most) running.because = join_text("decodes as fast as ", most);
}

}  // namespace

Fitted fitted(const config::RunConfig& config, const Subject& subject, const std::vector<std::string>& given, comm::Group& world) {
  refuse_unknown(config);
  const bool speaks = world.rank() == 0;
  if (speaks) log::info("== fit: made-up rows on ", subject.model_dir);
  Measured measured;
  set_budget(measured, config, world);
  const config::RunConfig probed = for_probe(config);
  policy::Rank rank(probed, config::layouts_of(probed, world.size()), world, subject.products);
  check_held(measured, config, rank.ranks, subject);
  const Longest longest = longest_of(config, subject);
  Probe probe(rank.parts, subject.model, longest);
  probe.load(subject.model_dir);
  measured = probe.measure(std::move(measured));
  const bool all_of_it = measured.budget_from != "memory.device_mib";  // host memory is of the same machine
  ByOwner by_owner = probe.held();
  by_owner["reference_weights"] = reference_bytes(config, rank.ranks.train_layout, subject.model);
  const Held held = held_of(std::move(by_owner), config, all_of_it);
  measured.held_bytes = held.training;
  measured.held_rolling_bytes = held.rolling;
  measured.cache_leaves = offloads(config);
  agree(measured, world);
  add_work(measured, config, rank.ranks, longest);
  std::vector<Decision> decisions = choose(measured, config, given);
  choose_by_speed(probe, decisions, given);
  if (speaks) {
    log::info(bytes_text(measured.budget_bytes), " a rank (", measured.budget_from, "), of which the model holds ",
              bytes_text(measured.held_bytes), "; rows of ", measured.context_tokens, " tokens");
    for (const std::string& line : table(decisions)) log::info(line);
  }
  std::string values;
  for (const Decision& d : decisions) values += std::to_string(d.is) + "\n";
  std::istringstream first(comm::text_of_first(world, values));  // speeds are of each rank
  for (Decision& d : decisions) first >> d.is;
  return {with_decisions(config, decisions), rank.compute.products()};
}

config::RunConfig as_before(config::RunConfig config, const std::string& run_dir, const std::vector<std::string>& given) {
  const std::string recipe = run_dir + "/config.yaml";
  std::error_code absent;
  if (!std::filesystem::exists(recipe, absent)) return config;
  std::vector<Decision> decisions = undecided(config);
  const std::vector<Decision> before = undecided(config::load_config(recipe, {}));
  for (Decision& d : decisions) {
    const auto earlier = std::ranges::find(before, d.option, &Decision::option);
    if (earlier != before.end() && std::ranges::find(given, d.option) == given.end()) d.is = earlier->is;
  }
  return with_decisions(std::move(config), decisions);
}

}  // namespace tandem::fit
