// SPDX-License-Identifier: Apache-2.0
#include "tandem/policy/actor.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/launch.h"
#include "tandem/model/weight_checksum.h"
#include "tandem/planner/memory.h"
#include "tandem/reshard/held_weights.h"
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

}  // namespace

Actor::Actor(const RunParts& parts, const model::ModelConfig& config, const train::Options& options)
    : parts_(parts), config_(fitting(parts.ranks, config)) {
  const Ranks& ranks = parts.ranks;
  Memory& memory = parts.memory;
  const model::LoraOptions& lora = parts.config.model.lora;
  if (lora.rank > 0) (void)model::lora_targets(config, lora, "model.lora_targets");
  if (ranks.trains()) {
    train_ = std::make_unique<model::ModelOnRank>(config_, ranks.train_place(), parts.compute.train(),
                                                  device::Home{memory.device, "weights", &memory.host});
    trainer_ = std::make_unique<train::Trainer>(options, train::TrainerSetup{.table = train_->table(),
                                                                             .decoder = train_->decoder(),
                                                                             .values = train_->values(),
                                                                             .ranks = train::Ranks::in(*ranks.train_mesh, config_),
                                                                             .arena = memory.device,
                                                                             .lora = lora,
                                                                             .seed = static_cast<uint64_t>(parts.config.run.seed),
                                                                             .host = &memory.host,
                                                                             .home = train_->memory(),
                                                                             .recorder = &parts.recorder});
  }
  if (ranks.is_first()) {
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(parts.compute.train().dtype()));
    const planner::TrainingPlan plan{config_, ranks.train_layout, element_bytes, lora,
                                     options.swap_optimizer ? train::kSwapChunkElements : 0};
    log::info("training holds on rank 0 ", planner::to_text(planner::training_memory(plan, 0)));
  }
  add_origins(model::family::parameters(config_), train_ ? &train_->table() : nullptr, false);
  if (lora.rank > 0) add_origins(model::lora_parameters(config_, lora), trainer_ ? &trainer_->lora()->table() : nullptr, true);
  const bool converts = parts.compute.train().dtype() != parts.compute.rollout().dtype();
  if (converts || ranks.placement.is_split() || ranks.train_layout != ranks.rollout_layout) make_rollout_weights();
}

void Actor::make_rollout_weights() {
  const config::RunConfig& c = parts_.config;
  const Ranks& ranks = parts_.ranks;
  const model::kernel::Gemm &train = parts_.compute.train(), &rollout = parts_.compute.rollout();
  reshard::PlanOptions options;
  options.element_bytes = static_cast<int64_t>(c10::elementSize(parts_.compute.switch_dtype()));
  options.may_alias = train.dtype() == rollout.dtype();
  options.overlap = comm::mpi_launched();  // among threads a transfer is a copy like those beside it
  options.checksums = c.parallel.reshard_checksum;
  options.bucket_bytes = c.parallel.reshard_bucket_mib << 20;
  options.ranks_per_node = comm::ranks_per_machine(ranks.world);
  const reshard::Table table = reshard::table_of(config_, {1, ranks.train_layout}, {1, ranks.rollout_layout}, reshard::Part::kAll,
                                                 ranks.placement.rollout.first);
  reshard::Plan plan = reshard::make_plan(table, options);
  // Context parallelism cuts no weight.
  if (plan.alias && lie_alike(train_->table(), model::parameter_table(config_, ranks.rollout_layout, ranks.world.rank()))) {
    rollout_ = std::make_unique<model::ModelOnRank>(config_, ranks.rollout_place(), train, train_->values());
    return;
  }
  if (plan.alias) {  // equal boxes that lie in another order in memory
    options.may_alias = false;
    plan = reshard::make_plan(table, options);
  }
  plan_ = reshard::part_of(plan, ranks.world.rank());
  if (!ranks.rolls_out()) return;
  const bool leaves = train_ && c.memory.offload_train_param;
  // Where training weights leave these start away: else a start would need room for both.
  const device::Home home{parts_.memory.device, "rollout_weights", nullptr, device::Keep::kNothing, leaves};
  rollout_ = std::make_unique<model::ModelOnRank>(config_, ranks.rollout_place(), rollout, home);
  if (leaves) hand_over_ = reshard::hand_over(*plan_, {train_->table(), *train_->memory()}, {rollout_->table(), *rollout_->memory()});
}

void Actor::register_with(Residency& residency) {
  using planner::Resident;
  const config::MemoryOptions& m = parts_.config.memory;
  const auto add = [&](Resident what, device::Swappable* memory, bool brought_by_switch) {
    residency.add({what, [=] { return memory->is_away(); }, [=] { return memory->leave(); },
                   brought_by_switch ? std::function<int64_t()>() : [=] { return memory->come_back(); }});
  };
  if (hand_over_) {
    add(Resident::kTrainWeights, train_->memory(), false);
    add(Resident::kRolloutWeights, rollout_->memory(), true);
  }
  if (!trainer_) return;
  train::Trainer* trainer = trainer_.get();
  if (m.offload_train_grad)
    residency.add({Resident::kGradients, [=] { return trainer->gradients_away(); },
                   [=] { return trainer->release_gradients(), int64_t{0}; }, [=] { return trainer->back_gradients(), int64_t{0}; }});
  if (m.offload_train_optimizer && !trainer->options().swap_optimizer)  // else it is on the host anyway
    residency.add({Resident::kOptimizer, [=] { return trainer->optimizer().state().is_away(); },
                   [=] { return trainer->optimizer().state().leave_device(); },
                   [=] { return trainer->optimizer().state().come_back(); }});
}

void Actor::load(const std::string& dir) {
  if (!train_) return;
  train_->load(dir);
  trainer_->start();
}

void Actor::send_weights() {
  if (!plan_) return;
  const at::ScalarType dtype = parts_.compute.switch_dtype();
  const auto held = [&](const std::unique_ptr<model::ModelOnRank>& model) {
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
      for (int64_t chunk : hand_over_->leave[bucket]) copied += train_->memory()->leave(chunk, chunk + 1);
    };
  }
  const reshard::Moved moved = reshard::execute(*plan_, parts_.ranks.world, held(train_), held(rollout_), options);
  if (hand_over_) {
    rollout_->memory()->come_back();  // what no bucket named
    copied += train_->memory()->leave();
    parts_.recorder.add("memory/offload_copied_bytes", static_cast<double>(copied));
  }
  parts_.recorder.set("switch/sent_bytes", static_cast<double>(moved.sent_bytes));
  parts_.recorder.set("switch/staging_bytes", static_cast<double>(moved.staging_peak_bytes));
}

std::string Actor::checksum() const {
  comm::Group& world = parts_.ranks.world;
  if (!train_) return model::weight_checksum({}, at::Tensor(), world);
  return model::weight_checksum(train_->table(), train_->contents(), world);
}

std::vector<checkpoint::TensorInfo> Actor::tensors() const {
  std::vector<checkpoint::TensorInfo> all;
  for (const model::family::Parameter& p : model::family::parameters(config_))
    all.push_back({p.name, p.in_float() ? at::kFloat : parts_.compute.train().dtype(), p.shape});
  return all;
}

std::vector<checkpoint::TensorInfo> Actor::adapters() const {
  std::vector<checkpoint::TensorInfo> all;
  if (!lora()) return all;
  for (const model::family::Parameter& p : model::lora_parameters(config_, *lora())) all.push_back({p.name, at::kFloat, p.shape});
  return all;
}

void Actor::add_origins(const std::vector<model::family::Parameter>& parameters, const model::ParameterTable* table, bool are_adapters) {
  std::map<std::string, const model::ParameterEntry*> entries;
  if (table)
    for (const model::ParameterEntry& e : table->entries) entries[e.parameter.name] = &e;
  for (const model::family::Parameter& p : parameters) {
    const auto found = entries.find(p.name);
    const at::ScalarType dtype = are_adapters || p.in_float() ? at::kFloat : parts_.compute.train().dtype();
    origins_.emplace(p.name, Origin{p, dtype, found == entries.end() ? nullptr : found->second, are_adapters});
  }
}

// This rank's part, wherever it is now.
at::Tensor Actor::part_of(const Origin& origin) const {
  if (!origin.entry) return at::empty({0}, origin.dtype);
  if (origin.is_adapter) return trainer_->lora()->table().view(trainer_->lora()->values(), *origin.entry);
  return train_->table().view(train_->contents(), *origin.entry);
}

// The boxes that make up a parameter and the ranks they come from: of equal ones the first.
std::vector<std::pair<int, Box>> Actor::parts_of(const model::family::Parameter& p) const {
  const model::Layout& layout = parts_.ranks.train_layout;
  std::vector<std::pair<int, Box>> all;
  for (int rank = 0; rank < layout.world(); ++rank) {
    if (!model::holds(layout, rank, p, config_)) continue;
    Box box = model::box_of(p, config_, layout, rank);
    if (std::ranges::none_of(all, [&](const auto& other) { return other.second == box; })) all.emplace_back(rank, std::move(box));
  }
  return all;
}

namespace {

bool first_has_all(const std::vector<std::pair<int, Box>>& parts, const model::family::Parameter& p) {
  return parts.front() == std::pair(0, Box::whole(p.shape));
}

}  // namespace

Actor::Staging Actor::stage() {
  int64_t most = 0;
  for (const auto& [name, origin] : origins_)
    if (!first_has_all(parts_of(origin.parameter), origin.parameter))
      most = std::max(most, checkpoint::TensorInfo{name, origin.dtype, origin.parameter.shape}.num_bytes());
  Staging staging;
  comm::run_alike(parts_.ranks.world, [&] {
    if (most == 0 || !parts_.ranks.is_first()) return;
    for (at::Tensor* bytes : {&staging.parts, &staging.whole}) *bytes = parts_.memory.host.allocate("checkpoint", {most}, at::kByte);
  });
  return staging;
}

at::Tensor Actor::gather(const std::string& name, const Staging& staging) {
  const Origin& origin = origins_.at(name);
  const model::family::Parameter& parameter = origin.parameter;
  const at::Tensor mine = part_of(origin);
  const auto parts = parts_of(parameter);
  if (first_has_all(parts, parameter)) return parts_.ranks.is_first() ? mine : at::Tensor();
  comm::Group& world = parts_.ranks.world;
  const auto width = static_cast<int64_t>(mine.element_size());
  std::vector<int64_t> send(static_cast<size_t>(world.size())), receive(send.size());
  int64_t receive_bytes = 0;
  for (const auto& [rank, box] : parts) {
    const int64_t bytes = box.num_elements() * width;
    if (rank == world.rank()) send[0] = bytes;
    if (parts_.ranks.is_first()) receive[static_cast<size_t>(rank)] = bytes, receive_bytes += bytes;
  }
  const auto bytes = [](const at::Tensor& t, int64_t count) {
    return count == 0 ? std::span<std::byte>() : std::span(static_cast<std::byte*>(t.data_ptr()), static_cast<size_t>(count));
  };
  world.all_to_all_v(bytes(mine, send[0]), send, bytes(staging.parts, receive_bytes), receive);
  if (!parts_.ranks.is_first()) return {};
  const auto shaped = [&](const at::Tensor& room, int64_t begin, const std::vector<int64_t>& shape) {
    return room.narrow(0, begin, Box::whole(shape).num_elements() * width).view(mine.scalar_type()).view(shape);
  };
  const at::Tensor whole = shaped(staging.whole, 0, parameter.shape);
  int64_t begin = 0;
  for (const auto& [rank, box] : parts) {
    at::Tensor part = whole;
    for (size_t d = 0; d < box.begin.size(); ++d) part = part.narrow(static_cast<int64_t>(d), box.begin[d], box.extent(d));
    part.copy_(shaped(staging.parts, begin, box.shape()));
    begin += box.num_elements() * width;
  }
  return whole;
}

}  // namespace tandem::policy
