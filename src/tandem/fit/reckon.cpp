// SPDX-License-Identifier: Apache-2.0
#include "tandem/fit/reckon.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/strings.h"
#include "tandem/config/algorithm.h"
#include "tandem/config/layouts.h"
#include "tandem/device/device.h"
#include "tandem/model/kernel/backend.h"
#include "tandem/model/parameters.h"
#include "tandem/planner/activations.h"
#include "tandem/planner/memory.h"
#include "tandem/planner/reshard_cost.h"
#include "tandem/rollout/runner.h"
#include "tandem/train/optimizer_state.h"
#include "tandem/train/trainer.h"

namespace tandem::fit {
namespace {

using planner::StageKind;

constexpr const char* kReckoning = "the memory of a recipe";
constexpr int64_t kBytesPerMib = int64_t{1} << 20;
int64_t mib(int64_t bytes) { return (bytes + kBytesPerMib - 1) / kBytesPerMib; }

// As the recipe says; auto is what this machine has.
std::string kind_of_device(const config::RunConfig& c) {
  return c.run.device == "auto" ? device::backend_of(device::device_named("auto", "run.device")).name : c.run.device;
}

void refuse_without_formula(const config::RunConfig& c, const model::ModelConfig& model, const config::Layouts& layouts) {
  const auto refuse = [](const std::string& what) { throw UserError(kReckoning, what, "a recipe without, or tandem run --fit"); };
  if (c.data.max_prompt_tokens == 0)
    throw UserError(kReckoning, "data.max_prompt_tokens is 0: prompts may have any length", "the longest prompt that is allowed");
  if (c.rollout.sampling.max_new_tokens >= model.max_positions)
    throw UserError("rollout.max_new_tokens", join_text("is ", c.rollout.sampling.max_new_tokens),
                    join_text("less than the model's context of ", model.max_positions));
  if (model.moe.num_experts > 0 || model.mla.kv_rank > 0) refuse("has no formula for a " + model.family);
  if (c.parallel.has_sides()) refuse("has no formula for parallel.placement " + c.parallel.placement);
  if (layouts.train.pp > 1 || layouts.train.cp > 1 || layouts.rollout.pp > 1) refuse("has no formula for pp and cp");
  if (config::algorithm_of(c).needs_critic()) refuse("has no formula for a critic");
  if (!c.reward.model.empty()) refuse("has no formula for a reward model");
  if (c.has_workers()) refuse("has no formula for workers");
  if (c.run.kernels == "aten") refuse("has no formula for run.kernels aten");
  if (const std::string kind = kind_of_device(c); kind != "cpu" && kind != "cuda") refuse("has no formula for run.device " + kind);
}

int64_t element_bytes(const std::string& dtype) { return dtype == "bfloat16" ? 2 : 4; }
std::string rollout_dtype(const config::RunConfig& c) { return c.rollout.dtype.empty() ? c.model.dtype : c.rollout.dtype; }

class Recipe {
 public:
  Recipe(const config::RunConfig& config, const model::ModelConfig& model, const config::Layouts& layouts)
      : c_(config), model_(model), layouts_(layouts) {
    train_ = {model, layouts.train, element_bytes(c_.model.dtype), c_.model.lora};
    train_.swap_chunk_elements = c_.train.swap_optimizer ? train::kSwapChunkElements : 0;
    rollout_ = {model, layouts.rollout, element_bytes(rollout_dtype(c_))};
    train_.on_cuda = rollout_.on_cuda = kind_of_device(c_) == "cuda";
    has_rollout_weights_ = layouts.train != layouts.rollout || rollout_.element_bytes != train_.element_bytes;
  }

  Reckoned reckoned() const {
    const planner::TrainingMemory training = planner::training_memory(train_, 0);
    ByOwner all = training.device;
    const int64_t rollout_weights = model::parameter_table(model_, layouts_.rollout, 0).num_elements * rollout_.element_bytes;
    if (has_rollout_weights_) all["rollout_weights"] = rollout_weights;
    planner::TrainingPlan generating = rollout_;
    generating.lora = c_.model.lora;
    const planner::AdapterBytes adapters = planner::adapter_bytes(generating, 0);
    if (has_rollout_weights_ && adapters.values > 0) all["lora"] += adapters.values + adapters.factors;
    if (c_.rollout.engine.packed_weights) all["packed"] = rollout_weights + adapters.factors;  // at most
    if (const int64_t bytes = reference_bytes(c_, layouts_.train, model_); bytes > 0) all["reference_weights"] = bytes;
    all["kv_cache"] = kv_cache_bytes();
    if (has_graphs()) {
      const planner::GraphMemory graphs = planner::graph_memory(rollout_, c_.rollout.engine.max_running, blocks_of_sequence());
      all["logits"] = graphs.logits;
      all["graphs"] = graphs.shared;
    }
    Reckoned out;
    for (const planner::Stage& stage : config::schedule_of(c_, layouts_, false).stages)
      if (!stage.needs.empty()) out.stages.push_back({stage.name, stage.kind, during(stage, all)});
    out.host = on_host(all, c_);
    for (const auto& [owner, bytes] : training.host) out.host[owner] += bytes;
    if (const int64_t bytes = checkpoint_bytes(); bytes > 0) out.host["checkpoint"] = bytes;
    return out;
  }

 private:
  int64_t in_context(int64_t new_tokens) const { return std::min(model_.max_positions, c_.data.max_prompt_tokens + new_tokens); }
  int64_t row_tokens() const { return in_context(c_.rollout.sampling.max_new_tokens) - 1; }
  bool evaluates() const { return !c_.data.eval.empty() && (c_.eval.before || c_.eval.after || c_.eval.every_steps > 0); }

  // As rollout/decode_graph.h:DecodeGraphs::serves.
  bool has_graphs() const {
    const bool is_alone = layouts_.rollout.tp == 1 && layouts_.rollout.pp == 1;
    return c_.rollout.engine.graphs && rollout_.on_cuda && is_alone && model_.moe.num_experts == 0;
  }
  bool filters() const {
    const auto by = [](const rollout::Sampling& s) { return s.temperature > 0 && (s.top_k > 0 || s.top_p < 1); };
    return by(c_.rollout.sampling) || (evaluates() && by(c_.eval.sampling));
  }
  int64_t most_tokens() const { return std::max(row_tokens() + 1, evaluates() ? in_context(c_.eval.sampling.max_new_tokens) : 0); }
  int64_t blocks_of_sequence() const { return (most_tokens() + block_tokens() - 1) / block_tokens(); }

  int64_t block_tokens() const {
    using namespace model::kernel;
    const auto& attention = (rollout_.on_cuda ? aten::backend() : cpu::backend()).attention;
    return rollout::block_tokens_of(c_.rollout.engine, attention, rollout_.on_cuda ? at::kCUDA : at::kCPU);
  }

  int64_t kv_cache_bytes() const {
    const model::Layout& l = layouts_.rollout;
    const rollout::CacheShape shape{model_.num_layers,
                                    {model_.num_heads / l.tp, model::local_kv_heads(model_, l.tp), model_.head_dim},
                                    block_tokens(),
                                    rollout_.element_bytes == 2 ? at::kBFloat16 : at::kFloat};
    const int64_t longest = most_tokens();
    const int64_t blocks = rollout::num_kv_blocks(c_.rollout.engine, shape, longest);
    if (const int64_t least = (longest + shape.block_tokens - 1) / shape.block_tokens; blocks < least)
      throw UserError("rollout.kv_cache_mib",
                      join_text("is ", c_.rollout.engine.kv_cache_mib, ", and one sequence may have ", longest, " tokens"),
                      join_text("at least ", mib(least * shape.bytes_per_block())));
    return (blocks + has_graphs()) * shape.bytes_per_block();
  }

  // A pass has at least one row, and at worst no prompt in it.
  planner::PassShape pass_of(int64_t budget_tokens) const {
    const int64_t tokens = std::max(budget_tokens, row_tokens());
    return {tokens, tokens};
  }

  int64_t passes_of(StageKind kind) const {
    const train::Options& t = c_.train;
    const rollout::Options& r = c_.rollout.engine;
    switch (kind) {
      case StageKind::kRollout: {
        const planner::PassShape pass{r.max_running + r.prefill_tokens, r.max_running};
        const int64_t step = planner::generation_step_bytes(rollout_, pass, blocks_of_sequence());
        const int64_t logits = has_graphs() ? 0 : planner::graph_memory(rollout_, r.max_running, 1).logits;
        return filters() ? std::max(step, logits + planner::filtered_draw_bytes(rollout_, r.max_running)) : step;
      }
      case StageKind::kReference: return planner::scoring_pass_bytes(train_, pass_of(t.reference_micro_batch_tokens));
      case StageKind::kOldLogprob: return planner::scoring_pass_bytes(train_, pass_of(t.logprob_micro_batch_tokens));
      case StageKind::kUpdate: return planner::training_pass_bytes(train_, pass_of(t.micro_batch_tokens), train::recompute_of(t));
      default: return 0;
    }
  }

  ByOwner during(const planner::Stage& stage, const ByOwner& all) const {
    ByOwner here = on_device(all, stage.needs, c_);
    if (const int64_t bytes = passes_of(stage.kind); bytes > 0) here[train::kActivations] = bytes;
    if (stage.kind != StageKind::kSwitch || !has_rollout_weights_) return here;
    here["staging"] = staging_bytes();
    // Handed over: as one leaves the other comes.
    const int64_t held = here["weights"], wanted = all.at("rollout_weights");
    if (!here.contains("rollout_weights")) here["rollout_weights"] = std::max<int64_t>(0, wanted - held);
    return here;
  }

  int64_t staging_bytes() const {
    planner::ReshardQuestion question{model_, {1, layouts_.train}, {1, layouts_.rollout}, {}};
    question.options.element_bytes = rollout_.element_bytes;
    question.options.bucket_bytes = c_.parallel.reshard_bucket_mib * kBytesPerMib;
    question.options.may_alias = false;
    return planner::reshard_report(question, [] { return 0.0; }).all.staging_peak_bytes;
  }

  // The largest tensor of which the first rank has a part alone, as it comes and as it goes.
  int64_t checkpoint_bytes() const {
    int64_t most = 0;
    for (const model::family::Parameter& p : model::family::parameters(model_)) {
      const int64_t elements = Box::whole(p.shape).num_elements();
      if (model::box_of(p, model_, layouts_.train, 0).num_elements() < elements) most = std::max(most, elements);
    }
    return 2 * most * train_.element_bytes;
  }

  const config::RunConfig& c_;
  const model::ModelConfig& model_;
  const config::Layouts& layouts_;
  planner::TrainingPlan train_, rollout_;
  bool has_rollout_weights_ = false;
};

using Owner = std::pair<std::string, int64_t>;
std::vector<Owner> largest_first(const ByOwner& by_owner) {
  std::vector<Owner> owners(by_owner.begin(), by_owner.end());
  std::ranges::stable_sort(owners, std::ranges::greater{}, &Owner::second);
  return owners;
}

std::string owners_line(const std::string& what, const ByOwner& by_owner) {
  std::string line = join_text(what, ": ", mib(sum_of(by_owner)), " MiB");
  for (const auto& [owner, bytes] : largest_first(by_owner))
    line += join_text(line.ends_with("MiB") ? " = " : ", ", owner, " ", bytes / kBytesPerMib);
  return line;
}

// What makes that part of a device smaller, and the recipe does not have yet; "" where only more ranks would.
std::string remedy_for(const std::string& owner, const StageMemory& stage, const config::RunConfig& c) {
  if (owner == "kv_cache")
    return stage.kind == StageKind::kRollout || offloads(c) ? "rollout.kv_cache_mib" : "any memory.offload_*, with which it leaves, too";
  if (owner == "logits" || owner == "graphs") return "rollout.max_running";
  if (owner == "packed") return "rollout.packed_weights: false";
  if (owner == "staging") return "parallel.reshard_bucket_mib";
  const bool trains = stage.kind == StageKind::kUpdate;
  if (owner == "gradients") return !trains ? "memory.offload_train_grad" : c.model.lora.rank == 0 ? "model.lora_rank" : "";
  if (owner == "optimizer" || owner == "master_weights")
    return c.train.swap_optimizer ? "" : trains ? "train.swap_optimizer" : "memory.offload_train_optimizer";
  if (owner == "reference_weights") return c.memory.offload_reference ? "" : "memory.offload_reference";
  if (owner == "rollout_weights") return c.memory.offload_train_param ? "" : "memory.offload_train_param";
  if (owner != train::kActivations) return "";
  if (stage.kind == StageKind::kRollout) return "rollout.prefill_tokens and rollout.max_running";
  if (stage.kind == StageKind::kReference) return "train.reference_micro_batch_tokens";
  if (stage.kind == StageKind::kOldLogprob) return "train.logprob_micro_batch_tokens";
  return c.train.recompute == "full" ? "train.micro_batch_tokens" : "train.recompute: full and train.micro_batch_tokens";
}

std::string remedies_for(const StageMemory& stage, const config::RunConfig& c) {
  std::string all;
  for (const auto& [owner, bytes] : largest_first(stage.device))
    if (const std::string remedy = remedy_for(owner, stage, c); !remedy.empty() && all.find(remedy) == std::string::npos)
      all += join_text(remedy, " (", owner, "), ");
  return all + "a shorter rollout.max_new_tokens, or more ranks";
}

bool fits(const ByOwner& by_owner, int64_t budget_mib) { return budget_mib == 0 || sum_of(by_owner) <= budget_mib * kBytesPerMib; }

}  // namespace

const StageMemory& Reckoned::peak() const {
  TANDEM_CHECK(!stages.empty(), "a recipe without a stage");
  return *std::ranges::max_element(stages, {}, [](const StageMemory& s) { return sum_of(s.device); });
}

Reckoned reckoned(const config::RunConfig& config, const model::ModelConfig& model) {
  const config::Layouts layouts = config::layouts_of(config, config::planned_ranks(config));
  refuse_without_formula(config, model, layouts);
  model::check_layout(layouts.train, model, model::Use::kTraining, "parallel.train_layout");
  model::check_layout(layouts.rollout, model, model::Use::kRollout, "parallel.rollout_layout");
  return Recipe(config, model, layouts).reckoned();
}

void check_budgets(const Reckoned& reckoned, const config::RunConfig& c) {
  const StageMemory& peak = reckoned.peak();
  if (!fits(peak.device, c.memory.device_mib))
    throw UserError("memory.device_mib", join_text("is ", c.memory.device_mib, ", and ", owners_line(peak.stage, peak.device)),
                    "what makes that smaller, the largest first: " + remedies_for(peak, c));
  if (!fits(reckoned.host, c.memory.host_mib))
    throw UserError("memory.host_mib", join_text("is ", c.memory.host_mib, ", and ", owners_line("the host", reckoned.host)),
                    "more, or fewer of train.swap_optimizer and memory.offload_*");
}

std::string to_text(const Reckoned& reckoned, const config::RunConfig& c) {
  std::string text = join_text("A rank on ", kind_of_device(c), ", stage by stage; prompts, answers and KV cache at their largest:\n");
  for (const StageMemory& stage : reckoned.stages) text += owners_line(stage.stage, stage.device) + "\n";
  text += owners_line("host", reckoned.host) + "\n";
  const StageMemory& peak = reckoned.peak();
  const auto verdict = [](const std::string& of, const ByOwner& held, const char* option, int64_t budget) {
    const int64_t most = mib(sum_of(held));
    const std::string fits = most <= budget ? join_text("it fits, with ", budget - most, " MiB to spare") : "it does not fit";
    return join_text("The most is ", most, " MiB (", of, "), and ", option, " is ", budget, ": ", budget == 0 ? "no budget" : fits, ".\n");
  };
  if (c.memory.host_mib > 0) text += verdict("host", reckoned.host, "memory.host_mib", c.memory.host_mib);
  return text + verdict(peak.stage, peak.device, "memory.device_mib", c.memory.device_mib);
}

}  // namespace tandem::fit
