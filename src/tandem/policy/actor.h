// SPDX-License-Identifier: Apache-2.0
#pragma once
// The actor of one rank: the role that trains, the weights that generate, and the switch between them. With equal layouts
// both are the same bytes; with a split placement a rank has one of the two.

#include <memory>
#include <optional>
#include <vector>

#include "tandem/model/lora.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/model/weight_checksum.h"
#include "tandem/policy/trained_role.h"
#include "tandem/reshard/execute.h"
#include "tandem/reshard/hand_over.h"

namespace tandem::policy {

/// Ownership  owns the trained role and, where they are not the same, the rollout's copy of its weights.
/// Threads    one per rank; send_weights is collective.
class Actor {
 public:
  /// Errors: UserError for a layout or adapters that the model cannot have.
  Actor(const RunParts& parts, const model::ModelConfig& config, const train::Options& options);

  /// Names what may leave the device, as memory.offload_train_* say.
  void register_with(Residency& residency);

  /// Sends the training weights to the rollout's, when rollout::switch_weights asks for it. Equal layouts alias: then nothing moves.
  /// Training weights that may leave the device do so bucket by bucket, and make room for the rollout's: in the hooks of
  /// reshard/execute.h, on this thread. Under RunConfig::is_free, where a rank never trains, the weights before stay as they are until
  /// the next call.
  /// Gives rollout_parameters(), or null where this rank does not generate. Collective over the world.
  const model::ModelParameters* send_weights();
  bool aliased() const { return !plan_; }

  TrainedRole& trained() { return trained_; }
  const TrainedRole& trained() const { return trained_; }
  const model::ModelConfig& config() const { return trained_.config(); }
  int64_t route_width() const { return (trained_.is_here() ? trained_.model() : *rollout_).decoder().route_width(); }
  /// Only where it generates.
  const model::Decoder& rollout_decoder() const { return rollout_model().decoder(); }
  /// Only where it generates: the model that others run, without its adapters.
  const model::ModelOnRank& rollout_model() const { return rollout_ ? *rollout_ : trained_.model(); }
  /// Only where it generates: the weights as rollout runs them, adapters and all.
  const model::ModelParameters& rollout_parameters() const { return rollout_parameters_; }
  /// Of the same; empty where this rank does not generate. The weights under adapters are summed once, for no update changes them.
  std::vector<model::BoxSum> rollout_sums();

 private:
  // Adapters that rollout runs, where training has its own in other memory.
  struct RolloutAdapters {
    reshard::RankPlan plan;
    std::unique_ptr<model::Lora> in_use, next;  // next: as next_rollout_; none where this rank does not generate
    bool has_base = false;                      // rollout has the weights under them, which no update changes
  };
  reshard::PlanOptions plan_options(at::ScalarType dtype) const;
  void make_rollout_weights();
  void make_rollout_adapters();
  void move_weights();
  reshard::Moved move_base();
  reshard::Moved move_adapters();
  void set_rollout_parameters();

  const RunParts parts_;
  TrainedRole trained_;
  std::unique_ptr<model::ModelOnRank> rollout_;
  std::unique_ptr<model::ModelOnRank> next_rollout_;  // where the old weights stay in use until the engine takes the new ones
  std::optional<reshard::RankPlan> plan_;  // none where both use the same bytes
  std::optional<RolloutAdapters> adapters_;
  std::optional<reshard::HandOver> hand_over_;  // where training weights leave for rollout
  model::ModelParameters rollout_parameters_;
  std::vector<model::BoxSum> base_sums_;  // of the weights under adapters
};

}  // namespace tandem::policy
