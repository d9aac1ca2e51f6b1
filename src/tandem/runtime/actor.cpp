// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/actor.h"

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/runtime/exchange.h"

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

namespace {

std::vector<checkpoint::TensorInfo> infos_of(const model::ParameterTable& table, c10::ScalarType dtype) {
  std::vector<checkpoint::TensorInfo> all;
  for (const model::ParameterEntry& e : table.entries) all.push_back({e.parameter.name, dtype, e.parameter.shape});
  return all;
}

bool is_cut(const model::ParameterEntry& e) { return e.box != Box::whole(e.parameter.shape); }

}  // namespace

std::vector<Actor::Flat> Actor::flats() const {
  std::vector<Flat> all = {{train_.table(), train_.values()}};
  if (trainer_->lora()) all.push_back({trainer_->lora()->table(), trainer_->lora()->values()});
  return all;
}

std::vector<checkpoint::TensorInfo> Actor::tensors() const { return infos_of(train_.table(), context_.gemm.dtype()); }

std::vector<checkpoint::TensorInfo> Actor::adapters() const {
  return trainer_->lora() ? infos_of(trainer_->lora()->table(), at::kFloat) : std::vector<checkpoint::TensorInfo>();
}

Actor::Staging Actor::stage() {
  int64_t slices = 0, whole = 0;
  for (const Flat& flat : flats())
    for (const model::ParameterEntry& e : flat.table.entries) {
      if (!is_cut(e)) continue;
      const checkpoint::TensorInfo info{e.parameter.name, flat.values.scalar_type(), e.parameter.shape};
      slices = std::max(slices, context_.train_layout.tp * e.num_elements * flat.values.element_size());
      whole = std::max(whole, info.num_bytes());
    }
  Staging staging;
  run_alike(context_.world, [&] {
    if (slices == 0 || context_.train_layout.dp_rank(context_.world.rank()) != 0) return;
    staging.slices = context_.host.allocate("checkpoint", {slices}, at::kByte);
    if (context_.is_first()) staging.whole = context_.host.allocate("checkpoint", {whole}, at::kByte);
  });
  return staging;
}

at::Tensor Actor::gather(const std::string& name, const Staging& staging) {
  for (const Flat& flat : flats()) {
    const auto& entries = flat.table.entries;
    const auto e = std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.parameter.name == name; });
    if (e != entries.end()) return gather(flat, *e, staging);
  }
  TANDEM_CHECK(false, "no tensor ", name);
}

at::Tensor Actor::gather(const Flat& flat, const model::ParameterEntry& e, const Staging& staging) {
  // Data-parallel ranks hold the same values: the master weights, rounded.
  if (context_.train_layout.dp_rank(context_.world.rank()) != 0) return {};
  const at::Tensor mine = flat.table.view(flat.values, e);
  if (!is_cut(e)) return context_.is_first() ? mine : at::Tensor();
  comm::Group& tp = context_.train_mesh.along(comm::Axis::kTp);
  const auto room = [&](const at::Tensor& bytes, int64_t elements) {
    return bytes.narrow(0, 0, elements * mine.element_size()).view(mine.scalar_type());
  };
  at::Tensor slices = room(staging.slices, tp.size() * mine.numel());
  tp.all_gather(slices, mine.view(-1));
  if (!context_.is_first()) return {};
  const at::Tensor whole = room(staging.whole, Box::whole(e.parameter.shape).num_elements()).view(e.parameter.shape);
  for (int r = 0; r < tp.size(); ++r) {
    const Box box = model::box_of(e.parameter, train_.config(), tp.size(), r);
    at::Tensor part = whole;
    for (size_t d = 0; d < box.begin.size(); ++d) part = part.narrow(static_cast<int64_t>(d), box.begin[d], box.extent(d));
    part.copy_(slices.narrow(0, r * mine.numel(), mine.numel()).view(part.sizes()));
  }
  return whole;
}

}  // namespace tandem::runtime
