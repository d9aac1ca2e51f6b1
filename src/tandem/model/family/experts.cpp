// SPDX-License-Identifier: Apache-2.0
// A sparse MLP: Qwen3-MoE, DeepSeek-V3. Expert parallelism deals the experts, expert tensor parallelism cuts their columns.
#include "tandem/model/family/parts.h"

namespace tandem::model::family {

void add_experts(Parameters& to, const ModelConfig& c, int64_t layer) {
  const std::string m = layer_name(layer, "mlp.");
  const MoeConfig& e = c.moe;
  const int64_t h = c.hidden_size;
  to.push_back({m + "gate.weight", {e.num_experts, h}, Split::kPartial, Slot::kRouter, layer});
  if (e.correction_bias) to.push_back({m + "gate.e_score_correction_bias", {e.num_experts}, Split::kNone, Slot::kRouterBias, layer, false});
  const auto expert = [&](int64_t i) { return m + "experts." + std::to_string(i) + "."; };
  for (int64_t i = 0; i < e.num_experts; ++i)
    for (const char* name : {"gate_proj.weight", "up_proj.weight"})
      to.push_back({expert(i) + name, {e.intermediate_size, h}, Split::kRows, Slot::kExpertGateUp, layer, true, i});
  for (int64_t i = 0; i < e.num_experts; ++i)
    to.push_back({expert(i) + "down_proj.weight", {h, e.intermediate_size}, Split::kColumns, Slot::kExpertDown, layer, true, i});
  if (e.num_shared_experts == 0) return;
  const int64_t shared = e.num_shared_experts * e.intermediate_size;
  for (const char* name : {"gate_proj.weight", "up_proj.weight"})
    to.push_back({m + "shared_experts." + name, {shared, h}, Split::kRows, Slot::kSharedGateUp, layer});
  to.push_back({m + "shared_experts.down_proj.weight", {h, shared}, Split::kColumns, Slot::kSharedDown, layer});
}

}  // namespace tandem::model::family
