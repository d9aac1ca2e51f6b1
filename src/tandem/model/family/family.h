// SPDX-License-Identifier: Apache-2.0
#pragma once
// A family is a table: the names and shapes of its parameters, and how tensor parallelism cuts each of them. The decoder
// itself is the same for all. To add one, see docs/adding_a_family.md.

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/model/config.h"

namespace tandem::model::family {

/// How tensor parallelism divides a parameter.
enum class Split {
  kNone,    ///< every rank holds all of it
  kRows,    ///< dimension 0 (column-parallel linear, vocabulary)
  kColumns, ///< dimension 1 (row-parallel linear)
  kKvRows,  ///< dimension 0 by kv heads; replicated in groups when there are fewer kv heads than ranks
  kPartial, ///< every rank holds all of it and uses it on its own heads or columns, so gradients add up over the ranks
};

/// What the decoder uses a parameter for. Those of one slot in one layer are fused in this order.
enum class Slot {
  kEmbedding, kInputNorm, kQkvWeight, kQkvBias, kHeadNorm, kOutput, kPostNorm, kGateUp, kDown, kFinalNorm, kHead,
  kScore,                                                                                      // in place of the head
  kQDown, kQDownNorm, kQUp, kKvDown, kKvDownNorm, kKvUp,                                       // latent attention
  kRouter, kRouterBias, kExpertGateUp, kExpertDown, kSharedGateUp, kSharedDown,                // experts
  kAdapter,                                                                                    // of low rank (lora.h)
};

struct Parameter {
  std::string name;             ///< Hugging Face name
  std::vector<int64_t> shape;   ///< global
  Split split;
  Slot slot;
  int64_t layer;                ///< -1 outside the layers
  bool trained = true;          ///< by gradient
  int64_t expert = -1;          ///< the routed expert it belongs to; -1 for all else

  /// Kept in fp32 whatever the compute dtype: a correction bias moves by less than bfloat16 can tell.
  bool in_float() const { return slot == Slot::kRouterBias; }
  /// Elements of the compute dtype that `n` of its own take in flat buffers and on the way between ranks.
  int64_t words(int64_t n) const { return in_float() ? 2 * n : n; }
};

/// Whether both are parts of one fused tensor.
bool same_slot(const Parameter& a, const Parameter& b);

struct Traits {
  const char* name;             ///< that the Hugging Face classes begin with
  bool qkv_bias;
  bool head_norm;               ///< RMSNorm of each query and key head before RoPE
  bool latent;                  ///< multi-head latent attention
  bool experts;                 ///< sparse MLPs
};

/// Errors: UserError for an unknown family.
Traits traits(const std::string& family, const std::string& where);

/// The Hugging Face classes: with an lm_head, and with a score head in its place.
std::string language_class(const Traits& traits);
std::string classifier_class(const Traits& traits);

/// The score head of a classifier, [labels, H].
inline constexpr const char* kScoreWeight = "score.weight";

/// Every parameter, in the order of the forward pass; those that fuse stand side by side.
std::vector<Parameter> parameters(const ModelConfig& config);

}  // namespace tandem::model::family
