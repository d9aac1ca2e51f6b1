// SPDX-License-Identifier: Apache-2.0
#pragma once
// Configurations of models that are made in an instant, for checks of a device and for tests.

#include <string>

#include "tandem/model/config.h"

namespace tandem::model {

/// A Qwen2 with 2 layers of 4 heads. `scale` multiplies every width.
inline ModelConfig tiny_config(int64_t scale = 1) {
  ModelConfig c;
  c.family = "qwen2";
  c.vocab_size = 64;
  c.hidden_size = 32 * scale;
  c.intermediate_size = 48 * scale;
  c.num_layers = 2;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 8 * scale;
  c.max_positions = 128;
  c.norm_eps = 1e-6;
  c.rope_theta = 10000;
  c.tied_embeddings = true;
  c.qkv_bias = true;
  c.eos_ids = {1};
  return c;
}

/// The same for another family without experts.
inline ModelConfig config_of(const std::string& family, int64_t kv_heads, int64_t scale = 1) {
  ModelConfig c = tiny_config(scale);
  c.family = family;
  c.num_kv_heads = kv_heads;
  c.qkv_bias = family == "qwen2";
  c.head_norm = family == "qwen3" || family == "qwen3_moe";
  return c;
}

/// One with experts: qwen3_moe or deepseek_v3.
inline ModelConfig experts_config(const std::string& family, int64_t scale = 1) {
  ModelConfig c = config_of(family, 2, scale);
  c.moe.num_experts = 6;
  c.moe.experts_per_token = 2;
  c.moe.intermediate_size = 16 * scale;
  c.moe.normalize = true;
  if (family == "qwen3_moe") return c;
  c.moe.num_shared_experts = 1;
  c.moe.num_groups = 3;
  c.moe.top_groups = 2;
  c.moe.sigmoid = c.moe.correction_bias = true;
  c.moe.scaling = 1.5;
  c.moe.first_sparse_layer = 1;
  c.mla = {12 * scale, 16 * scale, 8 * scale, 4 * scale, 6 * scale, true};
  c.head_dim = 4 * scale;
  c.num_kv_heads = c.num_heads;
  return c;
}

}  // namespace tandem::model
