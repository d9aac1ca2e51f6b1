// SPDX-License-Identifier: Apache-2.0
#include "tandem/planner/reshard_cost.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/reshard/plan_make.h"
#include "tandem/reshard/plan_weights.h"

namespace tandem::planner {
namespace {

using model::family::Parameter;

int64_t bytes_of(const Parameter& p, int64_t element_bytes) {
  return p.words(Box::whole(p.shape).num_elements()) * element_bytes;
}

struct Dense {
  int64_t bytes = 0, tensors = 0, largest_bytes = 0;
};

Dense dense_of(const model::ModelConfig& config, int64_t element_bytes) {
  Dense dense;
  for (const Parameter& p : model::family::parameters(config)) {
    if (p.expert >= 0) continue;
    const int64_t bytes = bytes_of(p, element_bytes);
    dense.bytes += bytes, ++dense.tensors;
    dense.largest_bytes = std::max(dense.largest_bytes, bytes);
  }
  return dense;
}

ReshardCost cost_of(const reshard::Plan& plan) {
  const reshard::PlanStats& s = plan.stats;
  ReshardCost cost;
  cost.ranks = static_cast<int>(s.sent_bytes.size());
  cost.alias = plan.alias;
  cost.mode = reshard::name_of(plan.mode);
  cost.bytes_total = s.bytes_total, cost.lower_bound_bytes = s.lower_bound_bytes;
  cost.bytes_sent_max = std::ranges::max(s.sent_bytes), cost.bytes_received_max = std::ranges::max(s.received_bytes);
  cost.bytes_sent_mean = static_cast<double>(s.bytes_total) / cost.ranks;
  cost.bytes_across_nodes = s.bytes_across_nodes, cost.lower_bound_across_nodes_bytes = s.lower_bound_across_nodes_bytes;
  cost.staging_peak_bytes = s.staging_peak_bytes;
  cost.calls = plan.num_calls;
  cost.modelled_s = s.modelled_s;
  return cost;
}

ReshardCost planned(const ReshardQuestion& q, reshard::Part part, const std::function<double()>& now_s) {
  const double begin_s = now_s();
  const reshard::Plan plan = reshard::make_plan(reshard::table_of(q.config, q.from, q.to, part), q.options);
  const double plan_s = now_s() - begin_s;
  ReshardCost cost = cost_of(plan);
  for (int rank = 0; rank < cost.ranks; ++rank) {
    const double part_begin_s = now_s();
    (void)reshard::part_of(plan, rank);
    cost.plan_s_max = std::max(cost.plan_s_max, plan_s + now_s() - part_begin_s);
  }
  return cost;
}

}  // namespace

GatherCost all_gather_cost(const model::ModelConfig& config, const model::Replicas& from, int64_t element_bytes) {
  GatherCost cost;
  std::map<std::pair<int64_t, model::family::Slot>, int64_t> fused;
  for (const Parameter& p : model::family::parameters(config)) {
    const int64_t bytes = bytes_of(p, element_bytes);
    fused[{p.layer, p.slot}] += bytes;
    cost.first_step_bytes += bytes * from.world();
    for (int rank = 0; rank < from.layout.world(); ++rank)
      if (model::holds(from.layout, rank, p, config))
        cost.first_step_bytes -= p.words(model::box_of(p, config, from.layout, rank).num_elements()) * element_bytes * from.count;
  }
  for (const auto& [place, bytes] : fused) cost.extra_memory_peak_bytes = std::max(cost.extra_memory_peak_bytes, bytes);
  cost.calls = std::ssize(fused) * from.world();
  return cost;
}

GatherCost broadcast_gather_cost(const model::ModelConfig& config, const model::Replicas& from, int64_t element_bytes) {
  const Dense dense = dense_of(config, element_bytes);
  const int64_t all = dense.bytes * from.world();
  return {all / from.layout.tp, all, dense.largest_bytes, dense.tensors * from.world()};
}

GatherCost gather_first_cost(const model::ModelConfig& config, const model::Replicas& from, int64_t element_bytes) {
  const Dense dense = dense_of(config, element_bytes);
  const int64_t all = dense.bytes * from.world();
  return {all / from.layout.pp, all, dense.largest_bytes, dense.tensors * from.world() / from.layout.pp};
}

ReshardQuestion reshard_question(const nlohmann::json& config, const std::string& where, const std::string& from, const std::string& to) {
  ReshardQuestion q{model::parse_config(config, where), model::parse_replicas(from, "--from"), model::parse_replicas(to, "--to"), {}};
  model::check_layout(q.from.layout, q.config, model::Use::kTraining, "--from");
  model::check_layout(q.to.layout, q.config, model::Use::kTraining, "--to");
  if (q.from.world() != q.to.world())
    throw UserError("--to", join_text(to, " has ", q.to.world(), " ranks, and ", from, " has ", q.from.world()),
                    "layouts of as many ranks");
  return q;
}

ReshardReport reshard_report(const ReshardQuestion& q, const std::function<double()>& now_s) {
  const int64_t width = q.options.element_bytes;
  ReshardReport report{.all = planned(q, reshard::Part::kAll, now_s),
                       .dense = planned(q, reshard::Part::kDense, now_s),
                       .all_gather = all_gather_cost(q.config, q.from, width),
                       .broadcast_gather = broadcast_gather_cost(q.config, q.from, width),
                       .gather_first = gather_first_cost(q.config, q.from, width)};
  if (q.config.moe.num_experts > 0) report.experts = planned(q, reshard::Part::kExperts, now_s);
  return report;
}

}  // namespace tandem::planner
