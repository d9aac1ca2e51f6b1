// SPDX-License-Identifier: Apache-2.0
#pragma once
// The actor of one rank: the weights that train, the weights that generate, and the switch between them. With equal layouts
// both are the same bytes.

#include <memory>
#include <optional>
#include <string>

#include "tandem/reshard/execute.h"
#include "tandem/runtime/context.h"
#include "tandem/train/trainer.h"

namespace tandem::runtime {

/// Ownership  owns training weights, trainer state and, where the layouts differ, the rollout's copy.
/// Threads    one per rank; load, switch and gather are collective.
class Actor {
 public:
  Actor(RankContext& context, const model::ModelConfig& config, const train::Options& options);

  /// Weights of a Hugging Face directory.
  void load(const std::string& dir);

  /// Brings the rollout's weights up to date. Equal layouts alias: nothing moves.
  void switch_to_rollout();
  bool aliased() const { return !rollout_; }

  train::Trainer& trainer() { return *trainer_; }
  const ModelOnRank& train_model() const { return train_; }
  const ModelOnRank& rollout_model() const { return rollout_ ? *rollout_ : train_; }
  /// Whole Hugging Face tensors in `dtype`, on rank 0 in host memory; empty elsewhere. Collective.
  std::map<std::string, at::Tensor> gather(c10::ScalarType dtype);

 private:
  std::vector<reshard::Held> held(const ModelOnRank& model) const;

  RankContext& context_;
  ModelOnRank train_;
  std::unique_ptr<train::Trainer> trainer_;
  std::unique_ptr<ModelOnRank> rollout_;
  std::optional<reshard::Plan> plan_;
};

}  // namespace tandem::runtime
