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
  std::string type = "default";    ///< default, linear, dynamic (which differs beyond max_positions alone), llama3 or yarn
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;      ///< llama3
  double beta_fast = 32, beta_slow = 1;                  ///< yarn: turns within the trained context between which it mixes
  double mscale = 0, mscale_all_dim = 0;                 ///< yarn: 0 where the config has none
  double attention_factor = 0;                           ///< yarn: of cosines and sines; 0 follows from the others
  int64_t original_max_positions = 0;
};

/// A layer whose MLP is a choice of experts. num_experts 0: the model has none.
struct MoeConfig {
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t intermediate_size = 0;   ///< of one expert
  int64_t num_shared_experts = 0;  ///< every token goes through these as well
  int64_t num_groups = 1;          ///< of experts; only those of the best `top_groups` are eligible
  int64_t top_groups = 1;
  bool sigmoid = false;            ///< scores; else softmax
  bool correction_bias = false;    ///< added to the scores for the choice alone
  bool normalize = false;          ///< the chosen weights to sum 1
  double scaling = 1;              ///< of the weights, after that
  int64_t first_sparse_layer = 0;
  int64_t sparse_step = 1;         ///< layer i is sparse where (i + 1) % sparse_step is 0
  std::vector<int64_t> dense_layers;  ///< and these never
};

/// Multi-head latent attention (DeepSeek-AI, DeepSeek-V2). kv_rank 0: the model has none.
struct MlaConfig {
  int64_t q_rank = 0;              ///< 0: queries come straight from the hidden state
  int64_t kv_rank = 0;
  int64_t nope_dim = 0, rope_dim = 0;  ///< of a query or key head: the part without positions, and the rotated one
  int64_t v_dim = 0;
  bool interleaved = true;         ///< rotated pairs lie side by side
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
  MoeConfig moe;
  MlaConfig mla;
  std::vector<int32_t> eos_ids;
  std::vector<std::string> stop_strings;  ///< of generation_config.json: texts that end a response
  int64_t num_labels = 0;          ///< scores a token gets in place of logits (a reward or value model); 0: a language model
  int32_t pad_id = -1;             ///< with labels: what fills a sequence up, and is not scored; -1: none

  int64_t q_size() const { return num_heads * head_dim; }
  int64_t kv_size() const { return num_kv_heads * head_dim; }
  bool is_sparse(int64_t layer) const;
  bool has_tied_head() const { return tied_embeddings && num_labels == 0; }
};

/// What a directory is opened for.
enum class ModelUse { kLanguage, kScores, kEither };

/// Errors: UserError naming `where`, the key and what would be right; a family that is not known is named beside those that are.
ModelConfig parse_config(const nlohmann::json& config, const std::string& where);
/// Reads DIR/config.json, and what ends a response by DIR/generation_config.json where that exists. Warns of what it does not
/// follow. Errors: also if the model is not of
/// that use.
ModelConfig read_config(const std::string& dir, ModelUse use = ModelUse::kLanguage);
/// The config.json that parse_config reads back.
nlohmann::json to_json(const ModelConfig& config, const std::string& dtype);

}  // namespace tandem::model
