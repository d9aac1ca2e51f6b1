// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/actor.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/planner/memory.h"
#include "tandem/reshard/held_weights.h"
#include "tandem/reshard/plan_weights.h"
#include "tandem/runtime/exchange.h"

namespace tandem::runtime {
namespace {

// Before anything is built by the layouts.
const model::ModelConfig& fitting(const RankContext& context, const model::ModelConfig& config) {
  model::check_layout(context.train_layout, config, model::Use::kTraining, "parallel.train_layout");
  model::check_layout(context.rollout_layout, config, model::Use::kRollout, "parallel.rollout_layout");
  return config;
}

bool lie_alike(const model::ParameterTable& a, const model::ParameterTable& b) {
  return a.num_elements == b.num_elements &&
         std::ranges::equal(a.entries, b.entries, [](const auto& x, const auto& y) { return x.offset == y.offset && x.box == y.box; });
}

}  // namespace

Actor::Actor(RankContext& context, const model::ModelConfig& config, const train::Options& options)
    : context_(context), train_(fitting(context, config), context.train_place(), context.gemm, context.device, "weights") {
  const model::LoraOptions& lora = context.config.model.lora;
  if (lora.rank > 0) (void)model::lora_targets(config, lora, "model.lora_targets");
  trainer_ = std::make_unique<train::Trainer>(
      options, train::TrainerSetup{train_.table(), train_.decoder(), train_.values(), train::Ranks::in(context.train_mesh, config),
                                   context.device, lora, static_cast<uint64_t>(context.config.run.seed), &context.host, &context.recorder});
  if (context.is_first()) {
    const planner::TrainingPlan plan{config, context.train_layout, static_cast<int64_t>(c10::elementSize(context.gemm.dtype())), lora,
                                     options.swap_optimizer ? train::kSwapChunkElements : 0};
    log::info("training holds on rank 0 ", planner::to_text(planner::training_memory(plan, 0)));
  }
  for (const model::family::Parameter& p : model::family::parameters(config)) add_origin(p, train_.table(), train_.values());
  if (const model::Lora* adapters = trainer_->lora())
    for (const model::family::Parameter& p : model::lora_parameters(config, lora)) add_origin(p, adapters->table(), adapters->values());
  if (context.train_layout == context.rollout_layout) return;
  reshard::PlanOptions plan_options;
  plan_options.element_bytes = static_cast<int64_t>(c10::elementSize(context.gemm.dtype()));
  plan_options.bucket_bytes = context.config.parallel.reshard_bucket_mib << 20;
  plan_options.ranks_per_node = comm::ranks_per_machine(context.world);
  const reshard::Table table = reshard::table_of(config, {1, context.train_layout}, {1, context.rollout_layout});
  const reshard::Plan plan = reshard::make_plan(table, plan_options);
  const model::ParameterTable rollout = model::parameter_table(config, context.rollout_layout, context.world.rank());
  if (plan.alias && lie_alike(train_.table(), rollout)) {  // cp, which cuts no weight
    rollout_ = std::make_unique<ModelOnRank>(config, context.rollout_place(), context.gemm, train_.values());
    return;
  }
  rollout_ = std::make_unique<ModelOnRank>(config, context.rollout_place(), context.gemm, context.device, "rollout_weights");
  plan_ = reshard::part_of(plan, context.world.rank());
}

void Actor::load(const std::string& dir) {
  train_.load(dir);
  trainer_->start();
}

void Actor::switch_to_rollout() {
  if (!plan_) return;
  const reshard::Moved moved = reshard::execute(*plan_, context_.world, reshard::held_weights(train_.table(), train_.values()),
                                                reshard::held_weights(rollout_->table(), rollout_->values()));
  context_.recorder.set("switch/sent_bytes", static_cast<double>(moved.sent_bytes));
  context_.recorder.set("switch/staging_bytes", static_cast<double>(moved.staging_peak_bytes));
}

std::vector<checkpoint::TensorInfo> Actor::tensors() const {
  std::vector<checkpoint::TensorInfo> all;
  for (const model::family::Parameter& p : model::family::parameters(train_.config()))
    all.push_back({p.name, p.in_float() ? at::kFloat : context_.gemm.dtype(), p.shape});
  return all;
}

std::vector<checkpoint::TensorInfo> Actor::adapters() const {
  std::vector<checkpoint::TensorInfo> all;
  if (!trainer_->lora()) return all;
  for (const model::family::Parameter& p : model::lora_parameters(train_.config(), context_.config.model.lora))
    all.push_back({p.name, at::kFloat, p.shape});
  return all;
}

void Actor::add_origin(const model::family::Parameter& parameter, const model::ParameterTable& table, const at::Tensor& values) {
  const auto entry = std::ranges::find_if(table.entries, [&](const auto& e) { return e.parameter.name == parameter.name; });
  at::Tensor mine = at::empty({0}, values.options().dtype(parameter.in_float() ? at::kFloat : values.scalar_type()));
  if (entry != table.entries.end()) mine = table.view(values, *entry);
  origins_.emplace(parameter.name, Origin{parameter, std::move(mine)});
}

// The boxes that make up a parameter and the ranks they come from: of equal ones the first.
std::vector<std::pair<int, Box>> Actor::parts_of(const model::family::Parameter& p) const {
  const model::Layout& layout = context_.train_layout;
  std::vector<std::pair<int, Box>> all;
  for (int rank = 0; rank < layout.world(); ++rank) {
    if (!model::holds(layout, rank, p, train_.config())) continue;
    Box box = model::box_of(p, train_.config(), layout, rank);
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
      most = std::max(most, checkpoint::TensorInfo{name, origin.mine.scalar_type(), origin.parameter.shape}.num_bytes());
  Staging staging;
  run_alike(context_.world, [&] {
    if (most == 0 || !context_.is_first()) return;
    for (at::Tensor* bytes : {&staging.parts, &staging.whole}) *bytes = context_.host.allocate("checkpoint", {most}, at::kByte);
  });
  return staging;
}

at::Tensor Actor::gather(const std::string& name, const Staging& staging) {
  const auto& [parameter, mine] = origins_.at(name);
  const auto parts = parts_of(parameter);
  if (first_has_all(parts, parameter)) return context_.is_first() ? mine : at::Tensor();
  comm::Group& world = context_.world;
  const auto width = static_cast<int64_t>(mine.element_size());
  std::vector<int64_t> send(static_cast<size_t>(world.size())), receive(send.size());
  int64_t receive_bytes = 0;
  for (const auto& [rank, box] : parts) {
    const int64_t bytes = box.num_elements() * width;
    if (rank == world.rank()) send[0] = bytes;
    if (context_.is_first()) receive[static_cast<size_t>(rank)] = bytes, receive_bytes += bytes;
  }
  const auto bytes = [](const at::Tensor& t, int64_t count) {
    return count == 0 ? std::span<std::byte>() : std::span(static_cast<std::byte*>(t.data_ptr()), static_cast<size_t>(count));
  };
  world.all_to_all_v(bytes(mine, send[0]), send, bytes(staging.parts, receive_bytes), receive);
  if (!context_.is_first()) return {};
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

}  // namespace tandem::runtime
