// SPDX-License-Identifier: Apache-2.0
#include "tandem/fit/held.h"

#include <algorithm>
#include <optional>

#include "tandem/config/algorithm.h"
#include "tandem/planner/memory.h"

namespace tandem::fit {
namespace {

using planner::Resident;

std::optional<Resident> resident_of(const std::string& owner) {
  if (owner.starts_with("critic_")) return Resident::kCriticWeights;
  if (owner == "weights") return Resident::kTrainWeights;
  if (owner == "gradients") return Resident::kGradients;
  if (owner == "optimizer" || owner == "master_weights") return Resident::kOptimizer;
  if (owner == "rollout_weights" || owner == "packed") return Resident::kRolloutWeights;
  if (owner == "kv_cache" || owner == "logits") return Resident::kKvCache;
  if (owner == "reference_weights") return Resident::kReference;
  return std::nullopt;  // adapters and what lies under them; what graphs share
}

bool fully_colocated(const config::RunConfig& c) { return c.parallel.placement == "fully_colocated"; }

bool may_leave(Resident what, const ByOwner& all, const config::RunConfig& c) {
  const config::MemoryOptions& o = c.memory;
  switch (what) {
    case Resident::kTrainWeights:
    case Resident::kRolloutWeights: return o.offload_train_param && all.contains("rollout_weights");
    case Resident::kGradients: return o.offload_train_grad;
    case Resident::kOptimizer: return o.offload_train_optimizer && !c.train.swap_optimizer;  // else a chunk, which stays
    case Resident::kKvCache: return offloads(c);
    case Resident::kReference: return o.offload_reference || fully_colocated(c);
    case Resident::kCriticWeights: return c.critic.offload || fully_colocated(c);
    default: return false;
  }
}

}  // namespace

int64_t sum_of(const ByOwner& by_owner) {
  int64_t bytes = 0;
  for (const auto& [owner, of_owner] : by_owner) bytes += of_owner;
  return bytes;
}

bool offloads(const config::RunConfig& c) {
  const config::MemoryOptions& o = c.memory;
  const bool critic_leaves = c.critic.offload && config::algorithm_of(c).needs_critic();
  return o.offload_train_param || o.offload_train_grad || o.offload_train_optimizer || o.offload_reference || critic_leaves ||
         fully_colocated(c);
}

ByOwner on_device(const ByOwner& all, const std::vector<Resident>& needs, const config::RunConfig& c) {
  ByOwner here;
  for (const auto& [owner, bytes] : all) {
    const std::optional<Resident> what = resident_of(owner);
    if (!what || !may_leave(*what, all, c) || std::ranges::find(needs, *what) != needs.end()) here[owner] = bytes;
  }
  return here;
}

ByOwner on_host(const ByOwner& all, const config::RunConfig& c) {
  ByOwner there;
  for (const auto& [owner, bytes] : all) {
    const std::optional<Resident> what = resident_of(owner);
    const bool is_lost = what == Resident::kGradients || what == Resident::kRolloutWeights || what == Resident::kKvCache;
    if (what && !is_lost && may_leave(*what, all, c)) there[owner] = bytes;
  }
  return there;
}

int64_t reference_bytes(const config::RunConfig& c, const model::Layout& layout, const model::ModelConfig& model) {
  if (!config::algorithm_of(c).needs_reference() || config::start_is_reference(c)) return 0;
  const std::string& other = c.model.ref_model_load_path;
  planner::TrainingPlan plan{other.empty() ? model : model::read_config(other), layout};
  plan.element_bytes = c.model.dtype == "bfloat16" ? 2 : 4;
  return planner::training_memory(plan, 0).device["weights"];
}

}  // namespace tandem::fit
