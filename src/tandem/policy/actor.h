// SPDX-License-Identifier: Apache-2.0
#pragma once
// The actor of one rank: the weights that train, the weights that generate, and the switch between them. With equal layouts
// both are the same bytes; with a split placement a rank has one of the two.

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tandem/checkpoint/safetensors.h"
#include "tandem/reshard/execute.h"
#include "tandem/reshard/hand_over.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/policy/rank.h"
#include "tandem/policy/residency.h"
#include "tandem/train/trainer.h"

namespace tandem::policy {

/// Ownership  owns training weights, trainer state and, where they are not the same, the rollout's copy.
/// Threads    one per rank; load, switch and gather are collective.
class Actor {
 public:
  /// Errors: UserError for a layout or adapters that the model cannot have.
  Actor(const RunParts& parts, const model::ModelConfig& config, const train::Options& options);

  /// Weights of a Hugging Face directory, where this rank trains.
  void load(const std::string& dir);

  /// Names what may leave the device, as memory.offload_train_* say.
  void register_with(Residency& residency);

  /// Sends the training weights to the rollout's, when rollout::switch_weights asks for it. Equal layouts alias: then nothing moves.
  /// Training weights that may leave the device do so bucket by bucket, and make room for the rollout's: in the hooks of
  /// reshard/execute.h, on this thread. Collective over the world.
  void send_weights();
  bool aliased() const { return !plan_; }

  const model::ModelConfig& config() const { return config_; }
  int64_t route_width() const { return (train_ ? *train_ : *rollout_).decoder().route_width(); }
  /// Only where this rank trains.
  train::Trainer& trainer() { return *trainer_; }
  const model::ModelOnRank& train_model() const { return *train_; }
  /// Only where it generates.
  const model::ModelOnRank& rollout_model() const { return rollout_ ? *rollout_ : *train_; }
  /// Null where the whole model is trained.
  const model::LoraOptions* lora() const { return parts_.config.model.lora.rank > 0 ? &parts_.config.model.lora : nullptr; }
  /// The weights before any adapter; only where lora().
  model::ModelParameters base_parameters() const { return trainer_->lora()->base(); }
  /// A text that is equal for equal training weights. Collective.
  std::string checksum() const;
  /// The Hugging Face tensors that gather() knows, in the dtype they are kept in.
  std::vector<checkpoint::TensorInfo> tensors() const;
  /// The adapters it knows, as PEFT names them, fp32; none where the whole model is trained.
  std::vector<checkpoint::TensorInfo> adapters() const;

  /// Host memory of rank 0 for the largest tensor of which others hold parts: bytes of the parts, and of the whole.
  struct Staging {
    at::Tensor parts, whole;
  };
  /// Takes that memory, so that no gather() fails for want of it. Collective. Errors: PeerError, on every rank alike, if rank 0 has no
  /// room.
  Staging stage();
  /// One of tensors() or adapters(), whole, on rank 0: a view of the weights, or of `staging` until the next call. Undefined
  /// elsewhere. Collective.
  at::Tensor gather(const std::string& name, const Staging& staging);

 private:
  // A tensor that gather() knows, whoever holds it, and this rank's part; empty, of its dtype, if it has none.
  struct Origin {
    model::family::Parameter parameter;
    at::ScalarType dtype;
    const model::ParameterEntry* entry = nullptr;  // null: this rank has none
    bool is_adapter = false;
  };
  void add_origins(const std::vector<model::family::Parameter>& parameters, const model::ParameterTable* table, bool are_adapters);
  at::Tensor part_of(const Origin& origin) const;
  void make_rollout_weights();
  std::vector<std::pair<int, Box>> parts_of(const model::family::Parameter& parameter) const;

  const RunParts parts_;
  const model::ModelConfig config_;
  std::unique_ptr<model::ModelOnRank> train_;
  std::unique_ptr<train::Trainer> trainer_;
  std::unique_ptr<model::ModelOnRank> rollout_;
  std::map<std::string, Origin> origins_;  // by name
  std::optional<reshard::RankPlan> plan_;  // none where both use the same bytes
  std::optional<reshard::HandOver> hand_over_;  // where training weights leave for rollout
};

}  // namespace tandem::policy
