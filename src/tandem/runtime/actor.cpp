// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/actor.h"

#include <ATen/ops/empty.h>

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

std::map<std::string, at::Tensor> Actor::gather() {
  const at::Tensor mine = trainer_->lora() ? train_.values() : trainer_->optimizer().gathered_master();
  return gather(train_.table(), mine, context_.gemm.dtype());
}

std::map<std::string, at::Tensor> Actor::gather_adapters() {
  if (!trainer_->lora()) return {};
  return gather(trainer_->lora()->table(), trainer_->optimizer().gathered_master(), at::kFloat);
}

// From the flat buffer of each TP rank.
std::map<std::string, at::Tensor> Actor::gather(const model::ParameterTable& own, const at::Tensor& mine, c10::ScalarType dtype) {
  comm::Group& tp = context_.train_mesh.along(comm::Axis::kTp);
  at::Tensor all = mine.unsqueeze(0);
  if (tp.size() > 1) {
    all = at::empty({tp.size(), mine.numel()}, mine.options());
    tp.all_gather(all, mine);
  }
  std::map<std::string, at::Tensor> tensors;
  if (!context_.is_first()) return tensors;
  std::vector<model::family::Parameter> parameters;
  for (const model::ParameterEntry& e : own.entries) parameters.push_back(e.parameter);
  for (int r = 0; r < tp.size(); ++r) {
    const model::ParameterTable table = model::parameter_table(own.config, own.layout, r, parameters);
    const at::Tensor flat = all.select(0, r);
    for (const model::ParameterEntry& e : table.entries) {
      at::Tensor& whole = tensors[e.parameter.name];
      if (!whole.defined()) whole = context_.host.allocate("checkpoint", e.parameter.shape, dtype);
      at::Tensor part = whole;
      for (size_t d = 0; d < e.box.begin.size(); ++d) part = part.narrow(static_cast<int64_t>(d), e.box.begin[d], e.box.extent(d));
      part.copy_(table.view(flat, e));
    }
  }
  return tensors;
}

}  // namespace tandem::runtime
