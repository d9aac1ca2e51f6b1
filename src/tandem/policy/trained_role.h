// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model that the run trains, as one rank has it: weights, trainer, what of it may leave the device, and its tensors as a checkpoint
// keeps them. The actor and the critic are two values of it; both have the layout of training.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tandem/checkpoint/safetensors.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/policy/rank.h"
#include "tandem/policy/residency.h"
#include "tandem/train/trainer.h"

namespace tandem::policy {

/// What tells one role from the other.
struct RoleSetup {
  std::string name;                  ///< in logs
  std::string folder;                ///< of its files in a checkpoint, and before its memory's owners' names; the actor's is empty
  std::string section;               ///< of its options, as errors name it
  model::ModelConfig config;
  train::Options options;
  model::LoraOptions lora;           ///< rank 0: the whole model is trained
  planner::Resident weights, gradients, optimizer;  ///< as stages name them
};

/// Which of its memory may leave the device.
struct MayLeave {
  bool weights = false, gradients = false, optimizer = false;
};

/// Ownership  owns weights and trainer, on ranks that train; others know the tensors alone.
/// Threads    one per rank; load, checksum and gather are collective over the world.
class TrainedRole {
 public:
  /// Errors: UserError for options or adapters that the model cannot have.
  TrainedRole(const RunParts& parts, const RoleSetup& setup);

  /// Weights of a Hugging Face directory, where this rank trains. A score head may be missing there: it then begins with zeros.
  void load(const std::string& dir);
  /// Names what may leave.
  void register_with(Residency& residency, MayLeave what);

  const std::string& name() const { return setup_.name; }
  const std::string& folder() const { return setup_.folder; }
  const model::ModelConfig& config() const { return setup_.config; }
  /// Model and trainer are there only where this rank trains.
  bool is_here() const { return trainer_ != nullptr; }
  const model::ModelOnRank& model() const { return *model_; }
  model::ModelOnRank& model() { return *model_; }
  train::Trainer& trainer() { return *trainer_; }
  const train::Trainer& trainer() const { return *trainer_; }
  /// Null where the whole model is trained.
  const model::LoraOptions* lora() const { return setup_.lora.rank > 0 ? &setup_.lora : nullptr; }

  /// A text that is equal for equal weights. Collective.
  std::string checksum() const;
  /// The Hugging Face tensors that gather() knows, in the dtype of a file: that they are kept in, or fp32 of a matrix with adapters, which
  /// is W there: rounded to bfloat16 it would lose most of a small change.
  std::vector<checkpoint::TensorInfo> tensors() const;
  /// The adapters it knows, as PEFT names them, fp32; none where the whole model is trained.
  std::vector<checkpoint::TensorInfo> adapters() const;
  /// Of these, A and B of a matrix; nullopt for one without.
  std::optional<std::pair<std::string, std::string>> adapters_of(const std::string& name) const;

  /// Host memory of rank 0 for the largest tensor of which others hold parts: bytes of the parts, and of the whole.
  struct Staging {
    comm::Group& group;
    at::Tensor parts, whole;
  };
  /// Takes that memory, so that no gather() fails for want of it. `group` has the ranks of the world. Collective over it.
  /// Errors: PeerError, on every rank alike, if rank 0 has no room.
  Staging stage(comm::Group& group) const;
  /// One of tensors() or adapters(), whole, on rank 0: a view of the weights, or of `staging` until the next call. Undefined
  /// elsewhere. Collective over the group of `staging`, and nothing else may change the weights meanwhile.
  at::Tensor gather(const std::string& name, const Staging& staging) const;

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
  std::vector<std::pair<int, Box>> parts_of(const model::family::Parameter& parameter) const;

  const RunParts parts_;
  const RoleSetup setup_;
  std::unique_ptr<model::ModelOnRank> model_;
  std::unique_ptr<train::Trainer> trainer_;
  std::map<std::string, Origin> origins_;  // by name
};

}  // namespace tandem::policy
