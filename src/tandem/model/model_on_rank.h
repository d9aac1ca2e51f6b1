// SPDX-License-Identifier: Apache-2.0
#pragma once
// One model as one rank holds it: its shape, its slice of the weights in an arena, and the decoder that runs it.

#include <memory>
#include <string>

#include "tandem/device/swappable.h"
#include "tandem/model/decoder.h"

namespace tandem::model {

/// Whether a directory must have the score head of a model that has one.
enum class Head { kStored, kMayBegin };

/// Ownership  owns the flat values; uses the Kernels and the group.
class ModelOnRank {
 public:
  /// Zeroed weights.
  ModelOnRank(const ModelConfig& config, const RankPlace& place, const kernel::Kernels& kernels, const device::Home& home);

  /// The model over values that lie as its table has them, of another ModelOnRank.
  ModelOnRank(const ModelConfig& config, const RankPlace& place, const kernel::Kernels& kernels, const at::Tensor& values);

  /// Reads the rank's boxes of a Hugging Face directory. A score head may be missing, if `head` says so: then it is zeros, as a critic
  /// begins. Errors: UserError for missing, unexpected or ill-shaped tensors.
  void load(const std::string& dir, Head head = Head::kStored);

  const ModelConfig& config() const { return table_.config; }
  const ParameterTable& table() const { return table_; }
  const Decoder& decoder() const { return decoder_; }
  const ModelParameters& parameters() const { return parameters_; }
  at::Tensor& values() { return values_; }
  /// Null where they are another model's.
  device::Swappable* memory() { return memory_.get(); }
  /// values(), or their copy on the host while they are away.
  const at::Tensor& contents() const { return memory_ ? memory_->contents() : values_; }
  const at::Tensor& values() const { return values_; }

 private:
  ParameterTable table_;
  Decoder decoder_;
  std::unique_ptr<device::Swappable> memory_;
  at::Tensor values_;
  ModelParameters parameters_;
};

/// "float32" or "bfloat16". Errors: UserError.
c10::ScalarType dtype_of(const std::string& name, const std::string& where);

}  // namespace tandem::model
