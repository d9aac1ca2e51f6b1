// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/actor.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::runtime {
namespace {

train::Optimizer::Ranks ranks_of(RankContext& c) {
  return {&c.world, &c.train_mesh.along(comm::Axis::kDp), &c.train_mesh.along(comm::Axis::kTp)};
}

reshard::RankBoxes boxes_of_all(const model::ModelConfig& config, const model::Layout& layout) {
  reshard::RankBoxes boxes;
  for (int rank = 0; rank < layout.world(); ++rank) boxes.push_back(model::boxes_of(config, layout, rank));
  return boxes;
}

}  // namespace

Actor::Actor(RankContext& context, const model::ModelConfig& config, const train::Options& options)
    : context_(context), train_(config, context.train_place(), context.gemm, context.device, "weights") {
  model::check_layout(context.train_layout, config, model::Use::kTraining, "parallel.train_layout");
  model::check_layout(context.rollout_layout, config, model::Use::kRollout, "parallel.rollout_layout");
  const model::LoraOptions& lora = context.config.model.lora;
  for (const model::family::Parameter& p : model::family::parameters(config)) parameters_.emplace(p.name, p);
  if (lora.rank > 0) (void)model::lora_targets(config, lora, "model.lora_targets");
  trainer_ = std::make_unique<train::Trainer>(
      options, train::TrainerSetup{train_.table(), train_.decoder(), train_.values(), ranks_of(context), context.device, lora,
                                   static_cast<uint64_t>(context.config.run.seed)});
  if (context.train_layout == context.rollout_layout) return;
  rollout_ = std::make_unique<ModelOnRank>(config, context.rollout_place(), context.gemm, context.device, "rollout_weights");
  reshard::PlanOptions plan_options;
  plan_options.element_bytes = static_cast<int64_t>(c10::elementSize(context.gemm.dtype()));
  plan_options.bucket_bytes = context.config.parallel.reshard_bucket_mib << 20;
  plan_ = reshard::make_plan(boxes_of_all(config, context.train_layout), boxes_of_all(config, context.rollout_layout), plan_options);
}

void Actor::load(const std::string& dir) {
  train_.load(dir);
  trainer_->start();
}

std::vector<reshard::Held> Actor::held(const ModelOnRank& model) const {
  std::vector<reshard::Held> all;
  for (const model::ParameterEntry& e : model.table().entries)
    if (const at::Tensor words = model.table().words(model.values(), e); e.parameter.in_float())
      all.push_back({{e.parameter.name, words.sizes().vec(), Box::whole(words.sizes().vec())}, words});
    else all.push_back({{e.parameter.name, e.parameter.shape, e.box}, words});
  return all;
}

void Actor::switch_to_rollout() {
  if (!rollout_) return;
  const reshard::Moved moved = reshard::execute(*plan_, context_.world, held(train_), held(*rollout_));
  context_.recorder.set("switch/sent_bytes", static_cast<double>(moved.sent_bytes));
  context_.recorder.set("switch/staging_bytes", static_cast<double>(moved.staging_peak_bytes));
}

std::vector<checkpoint::TensorInfo> Actor::tensors() const {
  std::vector<checkpoint::TensorInfo> all;
  for (const model::family::Parameter& p : model::family::parameters(train_.config())) all.push_back({p.name, p.in_float() ? at::kFloat : context_.gemm.dtype(), p.shape});
  return all;
}

at::Tensor Actor::gather(const std::string& name) {
  return gather(parameters_.at(name), train_.table(), train_.values());
}

std::map<std::string, at::Tensor> Actor::gather_adapters() {
  std::map<std::string, at::Tensor> all;
  if (!trainer_->lora()) return all;
  for (const model::ParameterEntry& e : trainer_->lora()->table().entries) {
    const at::Tensor whole = gather(e.parameter, trainer_->lora()->table(), trainer_->lora()->values());
    if (whole.defined()) all[e.parameter.name] = whole;
  }
  return all;
}

// The boxes that make up a parameter and the TP ranks they come from: of equal ones the first.
std::vector<std::pair<int, Box>> Actor::sources(const model::family::Parameter& p) const {
  const model::Layout& layout = context_.train_layout;
  std::vector<std::pair<int, Box>> all;
  for (int rank = 0; rank < layout.tp; ++rank) {
    if (!model::holds(layout, rank, p, train_.config())) continue;
    Box box = model::box_of(p, train_.config(), layout, rank);
    if (std::ranges::none_of(all, [&](const auto& other) { return other.second == box; })) all.emplace_back(rank, std::move(box));
  }
  return all;
}

at::Tensor Actor::gather(const model::family::Parameter& p, const model::ParameterTable& table, const at::Tensor& values) {
  // Data-parallel ranks hold the same values: the master weights, rounded.
  if (context_.train_layout.dp_rank(context_.world.rank()) != 0) return {};
  const auto e = std::ranges::find_if(table.entries, [&](const auto& entry) { return entry.parameter.name == p.name; });
  const at::Tensor mine = e == table.entries.end() ? at::empty({0}, values.options()) : table.view(values, *e);
  const auto parts = sources(p);
  if (parts.front() == std::pair(0, Box::whole(p.shape))) return context_.is_first() ? mine : at::Tensor();
  comm::Group& tp = context_.train_mesh.along(comm::Axis::kTp);
  const auto width = static_cast<int64_t>(mine.element_size());
  std::vector<int64_t> send(static_cast<size_t>(tp.size())), receive(send.size());
  int64_t num_elements = 0;
  for (const auto& [rank, box] : parts) {
    if (rank == tp.rank()) send[0] = mine.numel() * width;
    if (tp.rank() == 0) receive[static_cast<size_t>(rank)] = box.num_elements() * width, num_elements += box.num_elements();
  }
  const at::Tensor all = context_.host.allocate("checkpoint", {num_elements}, mine.scalar_type());
  const auto bytes = [](const at::Tensor& t, int64_t count) { return std::span(static_cast<std::byte*>(t.data_ptr()), static_cast<size_t>(count)); };
  tp.all_to_all_v(bytes(mine, send[0]), send, bytes(all, num_elements * width), receive);
  if (!context_.is_first()) return {};
  const at::Tensor whole = context_.host.allocate("checkpoint", p.shape, mine.scalar_type());
  int64_t begin = 0;
  for (const auto& [rank, box] : parts) {
    at::Tensor part = whole;
    for (size_t d = 0; d < box.begin.size(); ++d) part = part.narrow(static_cast<int64_t>(d), box.begin[d], box.extent(d));
    part.copy_(all.narrow(0, begin, box.num_elements()).view(part.sizes()));
    begin += box.num_elements();
  }
  return whole;
}

}  // namespace tandem::runtime
