// SPDX-License-Identifier: Apache-2.0
#include "tandem/policy/actor.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/launch.h"
#include "tandem/reshard/held_weights.h"
#include "tandem/reshard/plan_make.h"
#include "tandem/reshard/plan_weights.h"

namespace tandem::policy {
namespace {

// Before anything is built by the layouts.
const model::ModelConfig& fitting(const Ranks& ranks, const model::ModelConfig& config) {
  model::check_layout(ranks.train_layout, config, model::Use::kTraining, "parallel.train_layout");
  model::check_layout(ranks.rollout_layout, config, model::Use::kRollout, "parallel.rollout_layout");
  return config;
}

bool lie_alike(const model::ParameterTable& a, const model::ParameterTable& b) {
  return a.num_elements == b.num_elements &&
         std::ranges::equal(a.entries, b.entries, [](const auto& x, const auto& y) { return x.offset == y.offset && x.box == y.box; });
}

// Whether what generates is not what trains, in other memory.
bool needs_rollout_weights(const RunParts& parts) {
  const Ranks& ranks = parts.ranks;
  const bool converts = parts.compute.train().dtype() != parts.compute.rollout().dtype();
  return converts || ranks.placement.has_sides() || ranks.train_layout != ranks.rollout_layout;
}

}  // namespace

Actor::Actor(const RunParts& parts, const model::ModelConfig& config, const train::Options& options)
    : parts_(parts),
      trained_(parts, {.name = "actor",
                       .folder = "",
                       .section = "train",
                       .config = fitting(parts.ranks, config),
                       .options = options,
                       .lora = parts.config.model.lora,
                       .weights = planner::Resident::kTrainWeights,
                       .gradients = planner::Resident::kGradients,
                       .optimizer = planner::Resident::kOptimizer}) {
  if (needs_rollout_weights(parts)) make_rollout_weights();
  if (parts.ranks.rolls_out()) set_rollout_parameters();
}

reshard::PlanOptions Actor::plan_options(at::ScalarType dtype) const {
  const config::ParallelOptions& o = parts_.config.parallel;
  reshard::PlanOptions options;
  options.element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  options.may_alias = false;
  options.overlap = comm::are_processes(parts_.ranks.world);  // among threads a transfer is a copy like those beside it
  options.checksums = o.reshard_checksum;
  options.bucket_bytes = o.reshard_bucket_mib << 20;
  options.ranks_per_node = comm::ranks_per_machine(parts_.ranks.world);
  return options;
}

void Actor::make_rollout_weights() {
  const config::RunConfig& c = parts_.config;
  const Ranks& ranks = parts_.ranks;
  const model::kernel::Kernels &train = parts_.compute.train(), &rollout = parts_.compute.rollout();
  reshard::PlanOptions options = plan_options(parts_.compute.switch_dtype());
  options.may_alias = train.dtype() == rollout.dtype();
  const reshard::Table table = reshard::table_of(config(), model::family::parameters(config()), {1, ranks.train_layout},
                                                 {1, ranks.rollout_layout}, ranks.placement.rollout.first);
  reshard::Plan plan = reshard::make_plan(table, options);
  // Context parallelism cuts no weight.
  if (plan.alias && lie_alike(trained_.model().table(), model::parameter_table(config(), ranks.rollout_layout, ranks.world.rank()))) {
    rollout_ = std::make_unique<model::ModelOnRank>(config(), ranks.rollout_place(), train, trained_.model().values());
    return;
  }
  if (plan.alias) {  // equal boxes that lie in another order in memory
    options.may_alias = false;
    plan = reshard::make_plan(table, options);
  }
  plan_ = reshard::part_of(plan, ranks.world.rank());
  if (!ranks.rolls_out()) return make_rollout_adapters();
  const bool leaves = trained_.is_here() && c.memory.offload_train_param;
  // Where training weights leave these start away: else a start would need room for both.
  const device::Home home{parts_.memory.device, "rollout_weights", nullptr, device::Keep::kNothing, leaves};
  rollout_ = std::make_unique<model::ModelOnRank>(config(), ranks.rollout_place(), rollout, home);
  if (c.is_free() && ranks.only_generates() && !trained_.lora())
    next_rollout_ = std::make_unique<model::ModelOnRank>(config(), ranks.rollout_place(), rollout, home);
  make_rollout_adapters();
  if (!leaves) return;
  model::ModelOnRank& trained = trained_.model();
  hand_over_ = reshard::hand_over(*plan_, {trained.table(), *trained.memory()}, {rollout_->table(), *rollout_->memory()});
}

void Actor::make_rollout_adapters() {
  if (!trained_.lora()) return;
  const Ranks& ranks = parts_.ranks;
  const std::vector<model::family::Parameter> which = model::lora_parameters(config(), *trained_.lora());
  const reshard::Table table =
      reshard::table_of(config(), which, {1, ranks.train_layout}, {1, ranks.rollout_layout}, ranks.placement.rollout.first);
  adapters_.emplace(RolloutAdapters{.plan = reshard::part_of(reshard::make_plan(table, plan_options(at::kFloat)), ranks.world.rank()),
                                    .in_use = {},
                                    .next = {}});
  if (!ranks.rolls_out()) return;
  const auto make = [&] {
    return std::make_unique<model::Lora>(rollout_->table(), *trained_.lora(), rollout_->values(), parts_.memory.device);
  };
  adapters_->in_use = make();
  if (parts_.config.is_free() && ranks.only_generates()) adapters_->next = make();
}

void Actor::register_with(Residency& residency) {
  const config::MemoryOptions& m = parts_.config.memory;
  trained_.register_with(residency, {hand_over_.has_value(), m.offload_train_grad, m.offload_train_optimizer});
  if (!hand_over_) return;
  device::Swappable* rollout = rollout_->memory();  // only a switch brings it
  residency.add({planner::Resident::kRolloutWeights, [=] { return rollout->is_away(); }, [=] { return rollout->leave(); }, nullptr});
}

const model::ModelParameters* Actor::send_weights() {
  if (plan_) move_weights();
  if (!parts_.ranks.rolls_out()) return nullptr;
  set_rollout_parameters();
  return &rollout_parameters_;
}

void Actor::set_rollout_parameters() {
  if (adapters_) rollout_parameters_ = adapters_->in_use->adapted();
  else if (trained_.lora()) rollout_parameters_ = trained_.trainer().lora()->adapted();
  else rollout_parameters_ = rollout_model().parameters();
}

std::vector<model::BoxSum> Actor::rollout_sums() {
  if (!parts_.ranks.rolls_out()) return {};
  const model::ModelOnRank& model = rollout_model();
  const model::Lora* lora = adapters_ ? adapters_->in_use.get() : trained_.lora() ? trained_.trainer().lora() : nullptr;
  if (!lora) return model::box_sums(model.table(), model.contents());
  if (base_sums_.empty()) base_sums_ = model::box_sums(model.table(), model.contents());
  std::vector<model::BoxSum> sums = model::box_sums(lora->table(), lora->values());
  sums.insert(sums.end(), base_sums_.begin(), base_sums_.end());
  return sums;
}

// The weights under adapters stay on ranks that need not give their memory back.
void Actor::move_weights() {
  if (next_rollout_) std::swap(rollout_, next_rollout_);
  const bool moves_base = !adapters_ || parts_.config.memory.offload_train_param || !std::exchange(adapters_->has_base, true);
  const reshard::Moved base = moves_base ? move_base() : reshard::Moved(), beside = adapters_ ? move_adapters() : reshard::Moved();
  parts_.recorder.set("switch/sent_bytes", static_cast<double>(base.sent_bytes + beside.sent_bytes));
  parts_.recorder.set("switch/staging_bytes", static_cast<double>(std::max(base.staging_peak_bytes, beside.staging_peak_bytes)));
}

reshard::Moved Actor::move_adapters() {
  RolloutAdapters& adapters = *adapters_;
  if (adapters.next) std::swap(adapters.in_use, adapters.next);
  const auto held = [](const model::Lora* lora) {
    return lora ? reshard::held_weights(lora->table(), lora->values(), at::kFloat) : std::vector<reshard::Held>();
  };
  const std::vector<reshard::Held> from = held(trained_.is_here() ? trained_.trainer().lora() : nullptr), to = held(adapters.in_use.get());
  reshard::ExecuteOptions options{at::kFloat};
  options.arena = &parts_.memory.device;
  const reshard::Moved moved = reshard::execute(adapters.plan, parts_.ranks.world, from, to, options);
  if (adapters.in_use) adapters.in_use->refresh();
  return moved;
}

reshard::Moved Actor::move_base() {
  const at::ScalarType dtype = parts_.compute.switch_dtype();
  const auto held = [&](const model::ModelOnRank* model) {
    return model ? reshard::held_weights(model->table(), model->values(), dtype) : std::vector<reshard::Held>();
  };
  reshard::ExecuteOptions options{dtype};
  options.arena = &parts_.memory.device;
  int64_t copied = 0;
  if (hand_over_) {
    options.before_bucket = [&](size_t bucket) {
      for (int64_t chunk : hand_over_->come[bucket]) rollout_->memory()->come_back(chunk, chunk + 1);
    };
    options.after_bucket = [&](size_t bucket) {
      for (int64_t chunk : hand_over_->leave[bucket]) copied += trained_.model().memory()->leave(chunk, chunk + 1);
    };
  }
  const std::vector<reshard::Held> from = held(trained_.is_here() ? &trained_.model() : nullptr), to = held(rollout_.get());
  const reshard::Moved moved = reshard::execute(*plan_, parts_.ranks.world, from, to, options);
  if (hand_over_) {
    rollout_->memory()->come_back();  // what no bucket named
    copied += trained_.model().memory()->leave();
    parts_.recorder.add("memory/offload_copied_bytes", static_cast<double>(copied));
  }
  return moved;
}

}  // namespace tandem::policy
