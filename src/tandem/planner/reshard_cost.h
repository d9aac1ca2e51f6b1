// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a change of layouts costs, and what simpler ways would cost for the same weights. docs/design/reshard.md has the table.

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tandem/model/layout.h"
#include "tandem/reshard/plan.h"

namespace tandem::planner {

struct ReshardCost {
  int ranks = 0;
  bool alias = false;
  std::string mode;  ///< of the plan: reshard/plan.h:name_of
  int64_t bytes_total = 0, lower_bound_bytes = 0;
  int64_t bytes_sent_max = 0, bytes_received_max = 0;
  double bytes_sent_mean = 0;
  int64_t bytes_across_nodes = 0, lower_bound_across_nodes_bytes = 0;
  int64_t staging_peak_bytes = 0;  ///< all the memory of a rank above its source and target weights
  int64_t calls = 0;
  double modelled_s = 0;
  double plan_s_max = 0;      ///< a rank plans everything, then takes its part: the longest of all ranks
};

/// A way that gathers more than a rank needs.
struct GatherCost {
  int64_t first_step_bytes = 0, second_step_bytes = 0;  ///< over all ranks; one step where there is no second
  int64_t extra_memory_peak_bytes = 0;                  ///< what a rank holds gathered beside its weights
  int64_t calls = 0;                                    ///< over all ranks
};
/// Every rank gathers each fused tensor of each layer, all its experts among them, and keeps its part.
GatherCost all_gather_cost(const model::ModelConfig& config, const model::Replicas& from, int64_t element_bytes);
/// The n ranks exchange the m bytes of k tensors that are no routed experts, under tp = t and pp = p. The stages broadcast each
/// tensor's slices, n*m/t; then tp gathers, n*m..
GatherCost broadcast_gather_cost(const model::ModelConfig& config, const model::Replicas& from, int64_t element_bytes);
/// The same in the other order: tp gathers each stage's tensors, n*m/p; then the stages exchange them, n*m, in 1/p of the calls.
GatherCost gather_first_cost(const model::ModelConfig& config, const model::Replicas& from, int64_t element_bytes);

struct ReshardQuestion {
  model::ModelConfig config;
  model::Replicas from, to;
  reshard::PlanOptions options;
};
/// `config` is a Hugging Face config.json, called `where` in errors. Errors: UserError if it or a layout cannot be read, if a layout does
/// not fit the model, or if they are of different numbers of ranks.
ReshardQuestion reshard_question(const nlohmann::json& config, const std::string& where, const std::string& from, const std::string& to);

struct ReshardReport {
  ReshardCost all, experts, dense;
  GatherCost all_gather, broadcast_gather, gather_first;
};
/// `now_s` tells the time that planning is measured by.
ReshardReport reshard_report(const ReshardQuestion& question, const std::function<double()>& now_s);

}  // namespace tandem::planner
