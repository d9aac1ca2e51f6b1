// SPDX-License-Identifier: Apache-2.0
#pragma once
// The actor of one rank: the weights that train, the weights that generate, and the switch between them. With equal layouts
// both are the same bytes.

#include <memory>
#include <optional>
#include <string>

#include "tandem/checkpoint/safetensors.h"
#include "tandem/reshard/execute.h"
#include "tandem/runtime/context.h"
#include "tandem/train/trainer.h"

namespace tandem::runtime {

/// Ownership  owns training weights, trainer state and, where the layouts differ, the rollout's copy.
/// Threads    one per rank; load, switch and gather are collective.
class Actor {
 public:
  /// Errors: UserError for a layout or adapters that the model cannot have.
  Actor(RankContext& context, const model::ModelConfig& config, const train::Options& options);

  /// Weights of a Hugging Face directory.
  void load(const std::string& dir);

  /// Brings the rollout's weights up to date. Equal layouts alias: nothing moves.
  void switch_to_rollout();
  bool aliased() const { return !plan_; }

  train::Trainer& trainer() { return *trainer_; }
  /// Null where the whole model is trained.
  const model::LoraOptions* lora() const { return trainer_->lora() ? &context_.config.model.lora : nullptr; }
  /// The weights before any adapter; only where lora().
  model::ModelParameters base_parameters() const { return trainer_->lora()->base(); }
  const ModelOnRank& train_model() const { return train_; }
  const ModelOnRank& rollout_model() const { return rollout_ ? *rollout_ : train_; }
  /// The Hugging Face tensors that gather() knows, in the dtype they are kept in.
  std::vector<checkpoint::TensorInfo> tensors() const;
  /// The adapters it knows, as PEFT names them, fp32; none where the whole model is trained.
  std::vector<checkpoint::TensorInfo> adapters() const;

  /// Host memory of rank 0 for the largest of them that other ranks hold parts of: bytes of the parts, and of the whole.
  struct Staging {
    at::Tensor parts, whole;
  };
  /// Collective. Errors: PeerError, on every rank alike, if there is no room on one: gather() then cannot fail for want of it.
  Staging stage();
  /// One of tensors() or adapters(), whole, on rank 0: a view of the weights, or of `staging` until the next call. Undefined
  /// elsewhere. Collective.
  at::Tensor gather(const std::string& name, const Staging& staging);

 private:
  // A tensor that gather() knows, whoever holds it, and this rank's part; empty, of its dtype, if it has none.
  struct Origin {
    model::family::Parameter parameter;
    at::Tensor mine;
  };
  void add_origin(const model::family::Parameter& parameter, const model::ParameterTable& table, const at::Tensor& values);
  std::vector<std::pair<int, Box>> parts_of(const model::family::Parameter& parameter) const;

  RankContext& context_;
  ModelOnRank train_;
  std::unique_ptr<train::Trainer> trainer_;
  std::unique_ptr<ModelOnRank> rollout_;
  std::map<std::string, Origin> origins_;  // by name
  std::optional<reshard::RankPlan> plan_;  // none where both use the same bytes
};

}  // namespace tandem::runtime
