// SPDX-License-Identifier: Apache-2.0
// The halves of a dense decoder layer: Llama 3.x, Qwen2 and 2.5, Qwen3.
#include "tandem/model/family/parts.h"

namespace tandem::model::family {

void add_attention(Parameters& to, const ModelConfig& c, int64_t layer) {
  const std::string a = layer_name(layer, "self_attn.");
  const int64_t h = c.hidden_size;
  to.push_back({a + "q_proj.weight", {c.q_size(), h}, Split::kRows, Slot::kQkvWeight, layer});
  to.push_back({a + "k_proj.weight", {c.kv_size(), h}, Split::kKvRows, Slot::kQkvWeight, layer});
  to.push_back({a + "v_proj.weight", {c.kv_size(), h}, Split::kKvRows, Slot::kQkvWeight, layer});
  if (c.qkv_bias) {
    to.push_back({a + "q_proj.bias", {c.q_size()}, Split::kRows, Slot::kQkvBias, layer});
    to.push_back({a + "k_proj.bias", {c.kv_size()}, Split::kKvRows, Slot::kQkvBias, layer});
    to.push_back({a + "v_proj.bias", {c.kv_size()}, Split::kKvRows, Slot::kQkvBias, layer});
  }
  if (c.head_norm) {
    to.push_back({a + "q_norm.weight", {c.head_dim}, Split::kPartial, Slot::kHeadNorm, layer});
    to.push_back({a + "k_norm.weight", {c.head_dim}, Split::kPartial, Slot::kHeadNorm, layer});
  }
  to.push_back({a + "o_proj.weight", {h, c.q_size()}, Split::kColumns, Slot::kOutput, layer});
}

void add_mlp(Parameters& to, const ModelConfig& c, int64_t layer) {
  const std::string m = layer_name(layer, "mlp.");
  to.push_back({m + "gate_proj.weight", {c.intermediate_size, c.hidden_size}, Split::kRows, Slot::kGateUp, layer});
  to.push_back({m + "up_proj.weight", {c.intermediate_size, c.hidden_size}, Split::kRows, Slot::kGateUp, layer});
  to.push_back({m + "down_proj.weight", {c.hidden_size, c.intermediate_size}, Split::kColumns, Slot::kDown, layer});
}

}  // namespace tandem::model::family
