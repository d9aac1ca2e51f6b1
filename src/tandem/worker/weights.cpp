// SPDX-License-Identifier: Apache-2.0
#include "tandem/worker/weights.h"

#include "tandem/base/check.h"
#include "tandem/reshard/held_weights.h"

namespace tandem::worker {
namespace {

std::unique_ptr<model::ModelOnRank> empty_model(const model::ModelConfig& config, policy::Rank& rank) {
  const device::Home home{rank.memory.device, "rollout_weights", nullptr, device::Keep::kNothing};
  return std::make_unique<model::ModelOnRank>(config, rank.ranks.rollout_place(), rank.compute.rollout(), home);
}

// As a switch converts them (reshard/held_weights.h).
void convert(const model::ParameterTable& table, const at::Tensor& from, const at::Tensor& to) {
  const at::ScalarType dtype = from.element_size() < to.element_size() ? from.scalar_type() : to.scalar_type();
  const std::vector<reshard::Held> source = reshard::held_weights(table, from, dtype), target = reshard::held_weights(table, to, dtype);
  for (size_t i = 0; i < source.size(); ++i) target[i].tensor.copy_(source[i].tensor.to(dtype));
}

}  // namespace

Weights::Weights(const model::ModelConfig& config, const model::LoraOptions& lora, const Welcome& welcome, policy::Rank& rank,
                 const pull::PassingOptions& options)
    : lora_(lora),
      rank_(rank),
      in_use_(empty_model(config, rank)),
      next_(empty_model(config, rank)),
      model_(next_->table(), model::family::parameters(config), welcome.holders, options) {
  TANDEM_CHECK((lora.rank > 0) == !welcome.adapters.empty(), "a recipe and holders, of which only one has adapters");
  if (lora.rank == 0) return;
  const std::vector<model::family::Parameter> which = model::lora_parameters(config, lora);
  const model::Layout& layout = next_->table().layout;
  adapters_.emplace(model::parameter_table(config, layout, next_->table().rank, which), which, welcome.adapters, options);
}

pull::Fetched Weights::fetch(PolicyVersion version) {
  if (!adapters_) return model_.fetch(version, next_->values());
  if (!merged_ && !fetch_base()) return {};
  const pull::Fetched fetched = adapters_->fetch(version, merged_->values());
  if (fetched.is_whole) merged_->merge_into(next_->values());
  return fetched;
}

void Weights::stop() {
  model_.stop();
  if (adapters_) adapters_->stop();
}

// Before the first version neither copy is in use: both get it, and a merge writes the chosen matrices alone. W0 of those stays in the
// dtype of training, so that W is what it is there.
bool Weights::fetch_base() {
  const model::ParameterTable& table = next_->table();
  const at::Tensor base = rank_.memory.host.allocate("rollout_weights", {table.num_elements}, model_.held_dtype());
  if (!model_.fetch(kBaseVersion, base).is_whole) return false;
  for (model::ModelOnRank* each : {in_use_.get(), next_.get()}) convert(table, base, each->values());
  merged_.emplace(table, lora_, base, rank_.memory.device);
  return true;
}

}  // namespace tandem::worker
