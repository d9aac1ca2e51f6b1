// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model's shape as its Hugging Face config.json states it.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tandem::model {

/// How positions beyond the trained context are reached.
struct RopeScaling {
  std::string type = "default";    ///< default or llama3
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_max_positions = 0;
};

struct ModelConfig {
  std::string family;              ///< `model_type` of config.json
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_positions = 0;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  double norm_eps = 1e-6;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool head_norm = false;          ///< RMSNorm of query and key heads
  std::vector<int32_t> eos_ids;

  int64_t q_size() const { return num_heads * head_dim; }
  int64_t kv_size() const { return num_kv_heads * head_dim; }
};

/// Errors: UserError naming `where`, the key and what would be right; a family that is not known is named beside those that are.
ModelConfig parse_config(const nlohmann::json& config, const std::string& where);
/// Reads DIR/config.json, and the eos ids of DIR/generation_config.json where that exists.
ModelConfig read_config(const std::string& dir);
/// The config.json that parse_config reads back.
nlohmann::json to_json(const ModelConfig& config, const std::string& dtype);

}  // namespace tandem::model
