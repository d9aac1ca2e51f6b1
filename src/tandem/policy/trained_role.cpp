// SPDX-License-Identifier: Apache-2.0
#include "tandem/policy/trained_role.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "tandem/base/log.h"
#include "tandem/comm/agree.h"
#include "tandem/model/weight_checksum.h"
#include "tandem/planner/memory.h"

namespace tandem::policy {

TrainedRole::TrainedRole(const RunParts& parts, const RoleSetup& setup) : parts_(parts), setup_(setup) {
  const Ranks& ranks = parts.ranks;
  Memory& memory = parts.memory;
  const model::ModelConfig& config = setup_.config;
  const model::LoraOptions& lora = setup_.lora;
  const train::Options& options = setup_.options;
  const std::string prefix = setup_.folder.empty() ? "" : setup_.folder + "_";
  if (lora.rank > 0) (void)model::lora_targets(config, lora, "model.lora_targets");
  if (ranks.trains()) {
    model_ = std::make_unique<model::ModelOnRank>(config, ranks.train_place(), parts.compute.train(),
                                                  device::Home{memory.device, prefix + "weights", &memory.host});
    trainer_ = std::make_unique<train::Trainer>(options, train::TrainerSetup{.table = model_->table(),
                                                                             .decoder = model_->decoder(),
                                                                             .values = model_->values(),
                                                                             .ranks = train::Ranks::in(*ranks.train_mesh, config),
                                                                             .arena = memory.device,
                                                                             .lora = lora,
                                                                             .seed = static_cast<uint64_t>(parts.config.run.seed),
                                                                             .host = &memory.host,
                                                                             .home = model_->memory(),
                                                                             .recorder = &parts.recorder,
                                                                             .owner_prefix = prefix,
                                                                             .section = setup_.section});
  }
  if (ranks.is_first()) {
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(parts.compute.train().dtype()));
    const planner::TrainingPlan plan{config, ranks.train_layout, element_bytes, lora,
                                     options.swap_optimizer ? train::kSwapChunkElements : 0};
    log::info("training of the ", setup_.name, " holds on rank 0 ", planner::to_text(planner::training_memory(plan, 0)));
  }
  add_origins(model::family::parameters(config), model_ ? &model_->table() : nullptr, false);
  if (lora.rank > 0) add_origins(model::lora_parameters(config, lora), trainer_ ? &trainer_->lora()->table() : nullptr, true);
}

void TrainedRole::load(const std::string& dir) {
  if (!model_) return;
  model_->load(dir, model::Head::kMayBegin);
  trainer_->start();
}

void TrainedRole::register_with(Residency& residency, MayLeave what) {
  if (!trainer_) return;
  train::Trainer* trainer = trainer_.get();
  if (what.weights) residency.add(setup_.weights, *model_->memory());
  if (what.gradients)
    residency.add({setup_.gradients, [=] { return trainer->gradients_away(); },
                   [=] { return trainer->release_gradients(), int64_t{0}; }, [=] { return trainer->back_gradients(), int64_t{0}; }});
  if (what.optimizer && !setup_.options.swap_optimizer)  // else it is on the host anyway
    residency.add({setup_.optimizer, [=] { return trainer->optimizer().state().is_away(); },
                   [=] { return trainer->optimizer().state().leave_device(); },
                   [=] { return trainer->optimizer().state().come_back(); }});
}

std::string TrainedRole::checksum() const {
  comm::Group& world = parts_.ranks.world;
  if (!model_) return model::weight_checksum({}, at::Tensor(), world);
  return model::weight_checksum(model_->table(), model_->contents(), world);
}

std::vector<checkpoint::TensorInfo> TrainedRole::tensors() const {
  std::vector<checkpoint::TensorInfo> all;
  for (const model::family::Parameter& p : model::family::parameters(config()))
    all.push_back({p.name, p.in_float() || adapters_of(p.name) ? at::kFloat : parts_.compute.train().dtype(), p.shape});
  return all;
}

std::optional<std::pair<std::string, std::string>> TrainedRole::adapters_of(const std::string& name) const {
  if (!lora() || !model::is_adapted(origins_.at(name).parameter, *lora())) return std::nullopt;
  return model::adapter_names(origins_.at(name).parameter);
}

std::vector<checkpoint::TensorInfo> TrainedRole::adapters() const {
  std::vector<checkpoint::TensorInfo> all;
  if (!lora()) return all;
  for (const model::family::Parameter& p : model::lora_parameters(config(), *lora())) all.push_back({p.name, at::kFloat, p.shape});
  return all;
}

void TrainedRole::add_origins(const std::vector<model::family::Parameter>& parameters, const model::ParameterTable* table,
                              bool are_adapters) {
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
at::Tensor TrainedRole::part_of(const Origin& origin) const {
  if (!origin.entry) return at::empty({0}, origin.dtype);
  if (origin.is_adapter) return trainer_->lora()->table().view(trainer_->lora()->values(), *origin.entry);
  return model_->table().view(model_->contents(), *origin.entry);
}

// The boxes that make up a parameter and the ranks they come from: of equal ones the first.
std::vector<std::pair<int, Box>> TrainedRole::parts_of(const model::family::Parameter& p) const {
  const model::Layout& layout = parts_.ranks.train_layout;
  std::vector<std::pair<int, Box>> all;
  for (int rank = 0; rank < layout.world(); ++rank) {
    if (!model::holds(layout, rank, p, config())) continue;
    Box box = model::box_of(p, config(), layout, rank);
    if (std::ranges::none_of(all, [&](const auto& other) { return other.second == box; })) all.emplace_back(rank, std::move(box));
  }
  return all;
}

namespace {

bool first_has_all(const std::vector<std::pair<int, Box>>& parts, const model::family::Parameter& p) {
  return parts.front() == std::pair(0, Box::whole(p.shape));
}

}  // namespace

TrainedRole::Staging TrainedRole::stage(comm::Group& group) const {
  int64_t most = 0;
  for (const auto& [name, origin] : origins_)
    if (!first_has_all(parts_of(origin.parameter), origin.parameter))
      most = std::max(most, checkpoint::TensorInfo{name, origin.dtype, origin.parameter.shape}.num_bytes());
  Staging staging{group, {}, {}};
  comm::run_alike(group, [&] {
    if (most == 0 || !parts_.ranks.is_first()) return;
    for (at::Tensor* bytes : {&staging.parts, &staging.whole}) *bytes = parts_.memory.host.allocate("checkpoint", {most}, at::kByte);
  });
  return staging;
}

at::Tensor TrainedRole::gather(const std::string& name, const Staging& staging) const {
  const Origin& origin = origins_.at(name);
  const model::family::Parameter& parameter = origin.parameter;
  const at::Tensor mine = part_of(origin).cpu();
  const auto parts = parts_of(parameter);
  if (first_has_all(parts, parameter)) return parts_.ranks.is_first() ? mine : at::Tensor();
  comm::Group& world = staging.group;
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
