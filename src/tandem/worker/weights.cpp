// SPDX-License-Identifier: Apache-2.0
#include "tandem/worker/weights.h"

#include "tandem/base/check.h"

namespace tandem::worker {
namespace {

std::unique_ptr<model::ModelOnRank> empty_model(const model::ModelConfig& config, policy::Rank& rank) {
  const device::Home home{rank.memory.device, "rollout_weights", nullptr, device::Keep::kNothing};
  return std::make_unique<model::ModelOnRank>(config, rank.ranks.rollout_place(), rank.compute.rollout(), home);
}

}  // namespace

Weights::Weights(const model::ModelConfig& config, const model::LoraOptions& lora, const Welcome& welcome, policy::Rank& rank,
                 const pull::PassingOptions& options)
    : in_use_{empty_model(config, rank), nullptr, nullptr},
      next_{lora.rank > 0 ? nullptr : empty_model(config, rank), nullptr, nullptr},
      model_(in_use_.model->table(), model::family::parameters(config), welcome.holders, options) {
  TANDEM_CHECK((lora.rank > 0) == !welcome.adapters.empty(), "a recipe and holders, of which only one has adapters");
  if (lora.rank == 0) {
    for (Copy* copy : {&in_use_, &next_}) copy->parameters = std::make_unique<model::ModelParameters>(copy->model->parameters());
    return;
  }
  const model::ModelOnRank& model = *in_use_.model;
  next_.model = std::make_unique<model::ModelOnRank>(config, rank.ranks.rollout_place(), rank.compute.rollout(), model.values());
  for (Copy* copy : {&in_use_, &next_}) {
    copy->adapters = std::make_unique<model::Lora>(copy->model->table(), lora, model.values(), rank.memory.device);
    copy->parameters = std::make_unique<model::ModelParameters>(copy->adapters->adapted());
  }
  adapters_.emplace(in_use_.adapters->table(), model::lora_parameters(config, lora), welcome.adapters, options);
}

pull::Fetched Weights::fetch(PolicyVersion version) {
  const model::ModelOnRank& model = *next_.model;
  if (!adapters_) {
    const pull::Fetched fetched = model_.fetch(version, model.values());
    if (fetched.is_whole) next_.sums = model::box_sums(model.table(), model.values());
    return fetched;
  }
  if (base_sums_.empty()) {  // then neither copy is in use
    if (!model_.fetch(kBaseVersion, model.values()).is_whole) return {};
    base_sums_ = model::box_sums(model.table(), model.values());
  }
  model::Lora& lora = *next_.adapters;
  const pull::Fetched fetched = adapters_->fetch(version, lora.values());
  if (!fetched.is_whole) return fetched;
  lora.refresh();
  next_.sums = model::box_sums(lora.table(), lora.values());
  next_.sums.insert(next_.sums.end(), base_sums_.begin(), base_sums_.end());
  return fetched;
}

void Weights::stop() {
  model_.stop();
  if (adapters_) adapters_->stop();
}

}  // namespace tandem::worker
