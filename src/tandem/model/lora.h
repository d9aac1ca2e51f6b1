// SPDX-License-Identifier: Apache-2.0
#pragma once
// Low-rank adapters: a chosen matrix is W = W0 + (alpha / rank) B A, and A and B alone are trained (Hu et al., "LoRA:
// Low-Rank Adaptation of Large Language Models", 2021).
//
// The flat values of the model always hold W, in the compute dtype: rollout, the switch and the export see an ordinary model. W0 is kept
// beside, for the chosen matrices alone. In float32 training runs W, too. In bfloat16 W0 + B A rounds a small change away, so training
// computes W0 x + (alpha / rank) B (A x).

#include <string>
#include <vector>

#include "tandem/device/arena.h"
#include "tandem/model/options.h"
#include "tandem/model/parameters.h"

namespace tandem::model {

/// The chosen matrices as PEFT calls them, such as "q_proj", in the model's order. all-linear: every linear of attention,
/// MLPs and shared experts; routed experts, routers, embedding and head have no adapters.
/// Errors: UserError naming `where` for a name that the model has not.
std::vector<std::string> lora_targets(const ModelConfig& config, const LoraOptions& options, const std::string& where);

/// Whether `parameter` gets an adapter.
bool is_adapted(const family::Parameter& parameter, const LoraOptions& options);
/// A and B of every chosen matrix, named as in PEFT files, in the model's order. A is [rank, K], B is [N, rank].
std::vector<family::Parameter> lora_parameters(const ModelConfig& config, const LoraOptions& options);

/// The adapters of one rank's slice of a model.
///
/// Ownership  shares the model's values; owns the adapters (fp32) and W0 of the chosen matrices.
/// Threads    one.
class Lora {
 public:
  /// `base_values` are the flat values of `base`, which must outlive this.
  Lora(const ParameterTable& base, const LoraOptions& options, const at::Tensor& base_values, device::Arena& arena);

  /// To be called when the model's values are W0: keeps it. A becomes random and B zero, so that W is W0; the values depend on
  /// names and seed alone, not on the layout.
  void start(uint64_t seed);
  /// Writes W into the model's values; to be called whenever A or B changed.
  void merge();

  /// Of lora_parameters().
  const ParameterTable& table() const { return table_; }
  const at::Tensor& values() const { return values_; }  ///< A and B, flat
  /// The model as it is trained: frozen values, adapters with gradients in `grads` (fp32, flat, of table()). Forward passes in bfloat16 go
  /// through the adapters, or run W where `merged` asks for it.
  ModelParameters adapted(const at::Tensor& grads, bool merged) const;
  /// The model without adapters. It shares all but the chosen matrices.
  ModelParameters base() const;
  /// Writes W0 of the chosen matrices into `values`: flat, in the order of `base`, the table of the model, and of its dtype.
  void write_base(const ParameterTable& base, const at::Tensor& values) const;

 private:
  // One chosen matrix: where it lies in its slot, and where its A and B lie in the table.
  struct Chosen {
    family::Parameter parameter;
    int64_t first_row, a_entry;
  };
  // One slot with a chosen matrix. All of it is kept, as kernels take it whole.
  struct Kept {
    at::Tensor value, base;  // [N, K]: in the model, and W0
    std::vector<Chosen> chosen;
  };
  at::Tensor adapter(int64_t entry, const at::Tensor& flat) const;

  ModelParameters frozen_;
  ParameterTable table_;
  at::Tensor values_;
  double scale_;
  std::vector<Kept> kept_;
};

/// Adapters that are trained elsewhere: A and B come from there, and W is the same bits as there where both lie alike.
///
/// Ownership  owns A and B (fp32), and W0 of the chosen matrices.
/// Threads    one at a time.
class MergedAdapters {
 public:
  /// `base_values`: W0, flat as `base` has it, in the dtype of training. It keeps a copy of the chosen matrices alone.
  MergedAdapters(const ParameterTable& base, const LoraOptions& options, const at::Tensor& base_values, device::Arena& arena);

  /// Of lora_parameters().
  const ParameterTable& table() const { return table_; }
  const at::Tensor& values() const { return values_; }  ///< A and B, flat, to be filled; zeros before
  /// Writes W of the chosen matrices into `model`, flat as `base` has it, of any dtype: W is first rounded to the dtype of W0.
  void merge_into(const at::Tensor& model) const;

 private:
  struct Chosen {
    size_t entry;  // of the model
    at::Tensor base, a, b;
  };

  const ParameterTable model_, table_;
  const at::Tensor values_;
  const double scale_;
  std::vector<Chosen> chosen_;
};

}  // namespace tandem::model
