// SPDX-License-Identifier: Apache-2.0
#pragma once
// Low-rank adapters: a chosen matrix is W = W0 + (alpha / rank) B A, and A and B alone are trained (Hu et al., "LoRA:
// Low-Rank Adaptation of Large Language Models", 2021).
//
// The flat values of the model hold W0, and every pass adds the adapters' part: training, rollout, evaluation, workers. Merged into
// bfloat16, most of a small change would be gone, and what generates would be another model than the one that trains. W is written for
// files alone (merged_matrix).

#include <string>
#include <utility>
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
/// What PEFT calls A and B of a matrix.
std::pair<std::string, std::string> adapter_names(const family::Parameter& matrix);
/// A and B of every chosen matrix, named as in PEFT files, in the model's order. A is [rank, K], B is [N, rank].
std::vector<family::Parameter> lora_parameters(const ModelConfig& config, const LoraOptions& options);

/// W of one matrix, or of the same rows and columns of it, in fp32: base[N,K] + scale b[N,r] a[r,K].
at::Tensor merged_matrix(const at::Tensor& base_NK, const at::Tensor& a_rK, const at::Tensor& b_Nr, double scale);

/// The adapters of one rank's slice of a model.
///
/// Ownership  shares the model's values; owns the adapters: in fp32, and as products read them (op::Parameter::a_RK, b_NR).
/// Threads    one.
class Lora {
 public:
  /// `base_values` are the flat values of `base`, which must outlive this. The adapters are zeros.
  Lora(const ParameterTable& base, const LoraOptions& options, const at::Tensor& base_values, device::Arena& arena);

  /// A becomes random and B zero, so that W is W0; the values depend on names and seed alone, not on the layout.
  void start(uint64_t seed);
  /// Brings A and B to where products read them; to be called whenever values() changed.
  void refresh();

  /// Of lora_parameters().
  const ParameterTable& table() const { return table_; }
  const at::Tensor& values() const { return values_; }  ///< A and B, flat
  /// The model with its adapters, which have gradients in `grads` (fp32, flat, of table()); undefined where they are not trained.
  ModelParameters adapted(const at::Tensor& grads = {}) const;

 private:
  // One chosen matrix: where it lies in its slot, and where its A and B lie in the table.
  struct Chosen {
    family::Parameter parameter;
    int64_t first_row, a_entry;
  };
  // One slot with a chosen matrix.
  struct AdaptedSlot {
    at::Tensor a_RK, b_NR;
    std::vector<Chosen> chosen;
  };
  void place_factors(int64_t rank, at::ScalarType dtype, device::Arena& arena);
  at::Tensor adapter(int64_t entry, const at::Tensor& flat) const;

  ModelParameters base_;
  ParameterTable table_;
  at::Tensor values_;
  double scale_;
  std::vector<AdaptedSlot> slots_;
};

}  // namespace tandem::model
