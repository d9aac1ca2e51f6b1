// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/actor.h"

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
  model::check_layout(context.train_layout, config, "parallel.train_layout");
  model::check_layout(context.rollout_layout, config, "parallel.rollout_layout");
  const model::LoraOptions& lora = context.config.model.lora;
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
    all.push_back({{e.parameter.name, e.parameter.shape, e.box}, model.table().view(model.values(), e)});
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
  for (const model::ParameterEntry& e : train_.table().entries) all.push_back({e.parameter.name, context_.gemm.dtype(), e.parameter.shape});
  return all;
}

at::Tensor Actor::gather(const std::string& name) {
  const model::ParameterTable& table = train_.table();
  const auto e = std::find_if(table.entries.begin(), table.entries.end(), [&](const auto& entry) { return entry.parameter.name == name; });
  TANDEM_CHECK(e != table.entries.end(), "no tensor ", name);
  return gather(table, *e, train_.values());
}

std::map<std::string, at::Tensor> Actor::gather_adapters() {
  std::map<std::string, at::Tensor> all;
  if (!trainer_->lora()) return all;
  for (const model::ParameterEntry& e : trainer_->lora()->table().entries) {
    const at::Tensor whole = gather(trainer_->lora()->table(), e, trainer_->lora()->values());
    if (whole.defined()) all[e.parameter.name] = whole;
  }
  return all;
}

at::Tensor Actor::gather(const model::ParameterTable& table, const model::ParameterEntry& e, const at::Tensor& values) {
  // Data-parallel ranks hold the same values: the master weights, rounded.
  if (context_.train_layout.dp_rank(context_.world.rank()) != 0) return {};
  const at::Tensor mine = table.view(values, e);
  if (e.box == Box::whole(e.parameter.shape)) return context_.is_first() ? mine : at::Tensor();
  comm::Group& tp = context_.train_mesh.along(comm::Axis::kTp);
  at::Tensor all = context_.host.allocate("checkpoint", {tp.size(), mine.numel()}, mine.scalar_type());
  tp.all_gather(all, mine.view(-1));
  if (!context_.is_first()) return {};
  const at::Tensor whole = context_.host.allocate("checkpoint", e.parameter.shape, mine.scalar_type());
  for (int r = 0; r < tp.size(); ++r) {
    const Box box = model::box_of(e.parameter, train_.config(), tp.size(), r);
    at::Tensor part = whole;
    for (size_t d = 0; d < box.begin.size(); ++d) part = part.narrow(static_cast<int64_t>(d), box.begin[d], box.extent(d));
    part.copy_(all.select(0, r).view(part.sizes()));
  }
  return whole;
}

}  // namespace tandem::runtime
