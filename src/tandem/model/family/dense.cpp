// SPDX-License-Identifier: Apache-2.0
// Dense decoders: Llama 3.x, Qwen2 and 2.5, Qwen3.
#include "tandem/base/error.h"
#include "tandem/model/family/family.h"

namespace tandem::model::family {

Traits traits(const std::string& family, const std::string& where) {
  if (family == "llama") return {"LlamaForCausalLM", false, false};
  if (family == "qwen2") return {"Qwen2ForCausalLM", true, false};
  if (family == "qwen3") return {"Qwen3ForCausalLM", false, true};
  throw UserError(where, "model_type is \"" + family + "\"", "\"llama\", \"qwen2\" or \"qwen3\"");
}

std::vector<Parameter> parameters(const ModelConfig& c) {
  std::vector<Parameter> all;
  const int64_t h = c.hidden_size;
  all.push_back({"model.embed_tokens.weight", {c.vocab_size, h}, Split::kRows, Slot::kEmbedding, -1});
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string p = "model.layers." + std::to_string(i) + ".";
    const std::string a = p + "self_attn.";
    all.push_back({p + "input_layernorm.weight", {h}, Split::kNone, Slot::kInputNorm, i});
    all.push_back({a + "q_proj.weight", {c.q_size(), h}, Split::kRows, Slot::kQkvWeight, i});
    all.push_back({a + "k_proj.weight", {c.kv_size(), h}, Split::kKvRows, Slot::kQkvWeight, i});
    all.push_back({a + "v_proj.weight", {c.kv_size(), h}, Split::kKvRows, Slot::kQkvWeight, i});
    if (c.qkv_bias) {
      all.push_back({a + "q_proj.bias", {c.q_size()}, Split::kRows, Slot::kQkvBias, i});
      all.push_back({a + "k_proj.bias", {c.kv_size()}, Split::kKvRows, Slot::kQkvBias, i});
      all.push_back({a + "v_proj.bias", {c.kv_size()}, Split::kKvRows, Slot::kQkvBias, i});
    }
    if (c.head_norm) {
      all.push_back({a + "q_norm.weight", {c.head_dim}, Split::kPerHead, Slot::kHeadNorm, i});
      all.push_back({a + "k_norm.weight", {c.head_dim}, Split::kPerHead, Slot::kHeadNorm, i});
    }
    all.push_back({a + "o_proj.weight", {h, c.q_size()}, Split::kColumns, Slot::kOutput, i});
    all.push_back({p + "post_attention_layernorm.weight", {h}, Split::kNone, Slot::kPostNorm, i});
    all.push_back({p + "mlp.gate_proj.weight", {c.intermediate_size, h}, Split::kRows, Slot::kGateUp, i});
    all.push_back({p + "mlp.up_proj.weight", {c.intermediate_size, h}, Split::kRows, Slot::kGateUp, i});
    all.push_back({p + "mlp.down_proj.weight", {h, c.intermediate_size}, Split::kColumns, Slot::kDown, i});
  }
  all.push_back({"model.norm.weight", {h}, Split::kNone, Slot::kFinalNorm, -1});
  if (!c.tied_embeddings) all.push_back({"lm_head.weight", {c.vocab_size, h}, Split::kRows, Slot::kHead, -1});
  return all;
}

}  // namespace tandem::model::family
