// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention, as DeepSeek-V3 names its parts. What leads to the latents is whole on every rank; heads are cut.
#include "tandem/model/family/parts.h"

namespace tandem::model::family {

void add_latent_attention(Parameters& to, const ModelConfig& c, int64_t layer) {
  const std::string a = layer_name(layer, "self_attn.");
  const MlaConfig& m = c.mla;
  const int64_t h = c.hidden_size, q_width = c.num_heads * (m.nope_dim + m.rope_dim);
  if (m.q_rank > 0) {
    to.push_back({a + "q_a_proj.weight", {m.q_rank, h}, Split::kNone, Slot::kQDown, layer});
    to.push_back({a + "q_a_layernorm.weight", {m.q_rank}, Split::kNone, Slot::kQDownNorm, layer});
    to.push_back({a + "q_b_proj.weight", {q_width, m.q_rank}, Split::kRows, Slot::kQUp, layer});
  } else {
    to.push_back({a + "q_proj.weight", {q_width, h}, Split::kRows, Slot::kQUp, layer});
  }
  to.push_back({a + "kv_a_proj_with_mqa.weight", {m.kv_rank + m.rope_dim, h}, Split::kNone, Slot::kKvDown, layer});
  to.push_back({a + "kv_a_layernorm.weight", {m.kv_rank}, Split::kNone, Slot::kKvDownNorm, layer});
  to.push_back({a + "kv_b_proj.weight", {c.num_heads * (m.nope_dim + m.v_dim), m.kv_rank}, Split::kRows, Slot::kKvUp, layer});
  to.push_back({a + "o_proj.weight", {h, c.num_heads * m.v_dim}, Split::kColumns, Slot::kOutput, layer});
}

}  // namespace tandem::model::family
