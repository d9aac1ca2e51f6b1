// SPDX-License-Identifier: Apache-2.0
#include "tandem/planner/memory.h"

#include <algorithm>

#include "tandem/base/strings.h"
#include "tandem/model/lora.h"
#include "tandem/model/parameters.h"

namespace tandem::planner {
namespace {

constexpr int64_t kFloatBytes = 4;

// Elements of the values and gradients of what is trained, of the summed gradients' slices, and of the state.
struct Elements {
  int64_t values = 0, sums = 0, state = 0;
};

Elements elements_of(const model::ParameterTable& table) {
  const int64_t data = table.layout.data_ranks(), expert_data = table.layout.expert_data_ranks();
  int64_t dense = 0, experts = 0;
  for (const model::LayerRanges& l : table.layers) dense += l.dense.size(), experts += l.experts.size();
  const int64_t dense_slice = dense / data, expert_slice = experts / expert_data;
  // A slice of one rank is its gradient, where it stands.
  return {table.num_elements, (data > 1 ? dense_slice : 0) + (expert_data > 1 ? expert_slice : 0), dense_slice + expert_slice};
}

// What TP ranks add up of one layer at a time: of kv heads that they share, room for all.
int64_t staged_over_tp(const model::ParameterTable& table) {
  int64_t most = 0;
  for (const model::LayerRanges& layer : table.layers) {
    int64_t elements = 0;
    for (const model::ParameterEntry& e : table.entries) {
      if (e.offset < layer.dense.begin || e.offset >= layer.dense.end || !table.adds_over_tp(e)) continue;
      const bool by_heads = e.parameter.split == model::family::Split::kKvRows;
      elements += by_heads ? Box::whole(e.parameter.shape).num_elements() : e.num_elements;
    }
    most = std::max(most, elements);
  }
  return most;
}

// As products read adapters: of a fused matrix, A of all its adapters, and B as wide.
int64_t factor_elements(const model::ParameterTable& table, const model::LoraOptions& lora) {
  int64_t elements = 0;
  for (size_t i = 0; i < table.entries.size();) {
    int64_t rows = 0, ranks = 0;
    size_t end = i;
    for (; end < table.entries.size() && model::family::same_slot(table.entries[i].parameter, table.entries[end].parameter); ++end) {
      rows += table.entries[end].box.extent(0);
      ranks += model::is_adapted(table.entries[end].parameter, lora) ? lora.rank : 0;
    }
    if (ranks > 0) elements += ranks * (rows + table.entries[i].box.extent(1));
    i = end;
  }
  return elements;
}

}  // namespace

AdapterBytes adapter_bytes(const TrainingPlan& plan, int rank) {
  if (plan.lora.rank == 0) return {};
  const std::vector<model::family::Parameter> which = model::lora_parameters(plan.config, plan.lora);
  return {model::parameter_table(plan.config, plan.layout, rank, which).num_elements * kFloatBytes,
          factor_elements(model::parameter_table(plan.config, plan.layout, rank), plan.lora) * plan.element_bytes};
}

TrainingMemory training_memory(const TrainingPlan& plan, int rank) {
  const model::ParameterTable model = model::parameter_table(plan.config, plan.layout, rank);
  const bool adapts = plan.lora.rank > 0;
  const model::ParameterTable trained =
      adapts ? model::parameter_table(plan.config, plan.layout, rank, model::lora_parameters(plan.config, plan.lora)) : model;
  const Elements n = elements_of(trained);
  const bool has_master = plan.element_bytes < kFloatBytes && !adapts;
  TrainingMemory memory;
  memory.device["weights"] = model.num_elements * plan.element_bytes;
  if (const AdapterBytes adapters = adapter_bytes(plan, rank); adapts) memory.device["lora"] = adapters.values + adapters.factors;
  memory.device["gradients"] = (n.values + n.sums + staged_over_tp(trained)) * kFloatBytes;
  const bool swapped = plan.swap_chunk_elements > 0;
  auto& home = swapped ? memory.host : memory.device;
  home["optimizer"] = 2 * n.state * kFloatBytes;
  if (has_master) home["master_weights"] = n.state * kFloatBytes;
  if (swapped) memory.device["optimizer"] = (has_master ? 3 : 2) * std::min(n.state, plan.swap_chunk_elements) * kFloatBytes;
  return memory;
}

std::string to_text(const TrainingMemory& memory) {
  std::string text;
  for (const auto& [arena, by_owner] : {std::pair("on the device", memory.device), std::pair("on the host", memory.host)}) {
    if (by_owner.empty()) continue;
    int64_t all = 0;
    std::string owners;
    for (const auto& [owner, bytes] : by_owner) {
      all += bytes;
      owners += (owners.empty() ? "" : ", ") + owner + " " + bytes_text(bytes);
    }
    text += (text.empty() ? "" : "; ") + bytes_text(all) + " " + arena + ": " + owners;
  }
  return text;
}

}  // namespace tandem::planner
