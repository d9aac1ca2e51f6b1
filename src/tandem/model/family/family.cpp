// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/family/family.h"

#include "tandem/base/error.h"
#include "tandem/model/family/parts.h"

namespace tandem::model::family {

Traits traits(const std::string& family, const std::string& where) {
  //                                                   qkv_bias, head_norm, latent, experts
  if (family == "llama") return {"Llama", false, false, false, false};
  if (family == "qwen2") return {"Qwen2", true, false, false, false};
  if (family == "qwen3") return {"Qwen3", false, true, false, false};
  if (family == "qwen3_moe") return {"Qwen3Moe", false, true, false, true};
  if (family == "deepseek_v3") return {"DeepseekV3", false, false, true, true};
  throw UserError(where, "model_type is \"" + family + "\"", "Tandem has llama, qwen2, qwen3, qwen3_moe and deepseek_v3");
}

std::string language_class(const Traits& traits) { return std::string(traits.name) + "ForCausalLM"; }
std::string classifier_class(const Traits& traits) { return std::string(traits.name) + "ForSequenceClassification"; }

bool same_slot(const Parameter& a, const Parameter& b) { return a.slot == b.slot && a.layer == b.layer; }

std::string layer_name(int64_t layer, const std::string& inside) { return "model.layers." + std::to_string(layer) + "." + inside; }

std::vector<Parameter> parameters(const ModelConfig& c) {
  std::vector<Parameter> all;
  const int64_t h = c.hidden_size;
  all.push_back({"model.embed_tokens.weight", {c.vocab_size, h}, Split::kRows, Slot::kEmbedding, -1});
  for (int64_t i = 0; i < c.num_layers; ++i) {
    all.push_back({layer_name(i, "input_layernorm.weight"), {h}, Split::kNone, Slot::kInputNorm, i});
    if (c.mla.kv_rank > 0) add_latent_attention(all, c, i);
    else add_attention(all, c, i);
    all.push_back({layer_name(i, "post_attention_layernorm.weight"), {h}, Split::kNone, Slot::kPostNorm, i});
    if (c.is_sparse(i)) add_experts(all, c, i);
    else add_mlp(all, c, i);
  }
  all.push_back({"model.norm.weight", {h}, Split::kNone, Slot::kFinalNorm, -1});
  if (c.num_labels > 0) all.push_back({kScoreWeight, {c.num_labels, h}, Split::kNone, Slot::kScore, -1});
  else if (!c.tied_embeddings) all.push_back({"lm_head.weight", {c.vocab_size, h}, Split::kRows, Slot::kHead, -1});
  return all;
}

}  // namespace tandem::model::family
