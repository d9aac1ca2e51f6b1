// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/config.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/model/family/family.h"

namespace tandem::model {
namespace {

using nlohmann::json;

// Far above any model, and low enough that the bytes of all of them together are a number.
constexpr int64_t kMostLayers = int64_t{1} << 12, kMostWidth = int64_t{1} << 22, kMostRows = int64_t{1} << 24;

[[noreturn]] void refuse(const json& config, const char* key, const std::string& where, const std::string& wanted) {
  throw UserError(where, join_text("\"", key, "\" is ", config.at(key).dump().substr(0, 80)), wanted);
}

int64_t positive(const json& config, const char* key, int64_t most, const std::string& where) {
  if (!config.contains(key)) throw UserError(where, join_text("no \"", key, "\""), "a Hugging Face config.json");
  const json& v = config.at(key);
  if (!v.is_number_integer() || v.get<int64_t>() <= 0 || v.get<int64_t>() > most)
    refuse(config, key, where, join_text("a positive integer, at most ", most));
  return v.get<int64_t>();
}

double positive_number(const json& config, const char* key, double fallback, const std::string& where) {
  if (!config.contains(key)) return fallback;
  const json& v = config.at(key);
  if (!v.is_number() || !(v.get<double>() > 0) || !std::isfinite(v.get<double>())) refuse(config, key, where, "a positive number");
  return v.get<double>();
}

bool flag(const json& config, const char* key, const std::string& where) {
  if (!config.contains(key)) return false;
  if (!config.at(key).is_boolean()) refuse(config, key, where, "true or false");
  return config.at(key).get<bool>();
}

std::string text(const json& config, const char* key, const std::string& fallback, const std::string& where) {
  if (!config.contains(key)) return fallback;
  if (!config.at(key).is_string()) refuse(config, key, where, "a text");
  return config.at(key).get<std::string>();
}

void read_eos(const json& config, std::vector<int32_t>& ids, const std::string& where) {
  constexpr const char* kKey = "eos_token_id";
  if (!config.contains(kKey) || config.at(kKey).is_null()) return;
  const json& v = config.at(kKey);
  for (const json& id : v.is_array() ? v : json::array({v})) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > kMostRows)
      refuse(config, kKey, where, "a token id, or a list of token ids");
    const auto number = id.get<int32_t>();
    if (std::find(ids.begin(), ids.end(), number) == ids.end()) ids.push_back(number);
  }
}

RopeScaling read_llama3(const json& rope, const std::string& where) {
  RopeScaling s;
  s.type = "llama3";
  const std::pair<const char*, double*> numbers[] = {
      {"factor", &s.factor}, {"low_freq_factor", &s.low_freq_factor}, {"high_freq_factor", &s.high_freq_factor}};
  for (const auto& [key, value] : numbers) {
    if (!rope.contains(key)) throw UserError(where, join_text("no \"", key, "\""), "a positive number, as rope_type llama3 has it");
    *value = positive_number(rope, key, 1, where);
  }
  s.original_max_positions = positive(rope, "original_max_position_embeddings", kMostRows, where);
  if (s.high_freq_factor <= s.low_freq_factor)
    refuse(rope, "high_freq_factor", where, join_text("above low_freq_factor, ", s.low_freq_factor));
  return s;
}

// transformers 4 writes rope_theta and rope_scaling, transformers 5 puts both into rope_parameters.
void read_rope(const json& config, ModelConfig& c, const std::string& where) {
  c.rope_theta = positive_number(config, "rope_theta", c.rope_theta, where);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!config.contains(key) || config.at(key).is_null()) continue;
    const json& rope = config.at(key);
    if (!rope.is_object()) refuse(config, key, where, "an object, or null");
    const std::string inside = where + ": " + key;
    const std::string type = text(rope, "rope_type", text(rope, "type", "default", inside), inside);
    if (type == "llama3") c.rope_scaling = read_llama3(rope, inside);
    else if (type != "default") refuse(config, key, where, "rope_type \"default\" or \"llama3\" for " + c.family);
    c.rope_theta = positive_number(rope, "rope_theta", c.rope_theta, inside);
  }
}

json read_json(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw UserError(path, "cannot be read", "a Hugging Face model directory");
  json parsed = json::parse(in, nullptr, false);
  if (!parsed.is_object()) throw UserError(path, "is not a JSON object", "a Hugging Face config.json");
  return parsed;
}

}  // namespace

ModelConfig parse_config(const json& config, const std::string& where) {
  ModelConfig c;
  c.family = text(config, "model_type", "", where);
  const family::Traits traits = family::traits(c.family, where);
  c.vocab_size = positive(config, "vocab_size", kMostRows, where);
  c.hidden_size = positive(config, "hidden_size", kMostWidth, where);
  c.intermediate_size = positive(config, "intermediate_size", kMostWidth, where);
  c.num_layers = positive(config, "num_hidden_layers", kMostLayers, where);
  c.num_heads = positive(config, "num_attention_heads", kMostWidth, where);
  c.num_kv_heads = config.contains("num_key_value_heads") ? positive(config, "num_key_value_heads", kMostWidth, where) : c.num_heads;
  const bool says_head_dim = config.contains("head_dim") && !config["head_dim"].is_null();
  c.head_dim = says_head_dim ? positive(config, "head_dim", kMostWidth, where) : c.hidden_size / c.num_heads;
  c.max_positions = positive(config, "max_position_embeddings", kMostRows, where);
  read_rope(config, c, where);
  c.norm_eps = positive_number(config, "rms_norm_eps", c.norm_eps, where);
  c.tied_embeddings = flag(config, "tie_word_embeddings", where);
  c.qkv_bias = traits.qkv_bias;
  c.head_norm = traits.head_norm;
  // Qwen2 has its bias on q, k and v without saying so.
  for (const char* key : {"attention_bias", "mlp_bias"})
    if (flag(config, key, where)) refuse(config, key, where, "false for " + c.family);
  read_eos(config, c.eos_ids, where);
  if (c.num_heads % c.num_kv_heads != 0)
    throw UserError(where, join_text(c.num_heads, " heads over ", c.num_kv_heads, " kv heads"), "a multiple");
  if (c.head_dim % 2 != 0 || c.head_dim == 0) throw UserError(where, join_text("head_dim is ", c.head_dim), "an even number, for RoPE");
  if (c.q_size() > kMostWidth) throw UserError(where, join_text(c.num_heads, " heads of ", c.head_dim), join_text("at most ", kMostWidth));
  if (text(config, "hidden_act", "silu", where) != "silu") refuse(config, "hidden_act", where, "\"silu\"");
  if (flag(config, "use_sliding_window", where)) throw UserError(where, "use_sliding_window is on", "full attention");
  return c;
}

ModelConfig read_config(const std::string& dir) {
  const std::string path = dir + "/config.json";
  ModelConfig config = parse_config(read_json(path), path);
  const std::string generation = dir + "/generation_config.json";
  if (std::ifstream(generation)) read_eos(read_json(generation), config.eos_ids, generation);
  return config;
}

json to_json(const ModelConfig& c, const std::string& dtype) {
  json out = {{"architectures", {family::traits(c.family, "config").architecture}},
              {"model_type", c.family},
              {"vocab_size", c.vocab_size},
              {"hidden_size", c.hidden_size},
              {"intermediate_size", c.intermediate_size},
              {"num_hidden_layers", c.num_layers},
              {"num_attention_heads", c.num_heads},
              {"num_key_value_heads", c.num_kv_heads},
              {"head_dim", c.head_dim},
              {"hidden_act", "silu"},
              {"max_position_embeddings", c.max_positions},
              {"rms_norm_eps", c.norm_eps},
              {"rope_theta", c.rope_theta},
              {"tie_word_embeddings", c.tied_embeddings},
              {"use_sliding_window", false},
              {"attention_dropout", 0.0},
              {"initializer_range", 0.02},
              {"torch_dtype", dtype},
              {"use_cache", true}};
  if (c.rope_scaling.type != "default")
    out["rope_scaling"] = {{"rope_type", c.rope_scaling.type},
                           {"factor", c.rope_scaling.factor},
                           {"low_freq_factor", c.rope_scaling.low_freq_factor},
                           {"high_freq_factor", c.rope_scaling.high_freq_factor},
                           {"original_max_position_embeddings", c.rope_scaling.original_max_positions}};
  if (!c.eos_ids.empty()) out["eos_token_id"] = c.eos_ids.size() == 1 ? json(c.eos_ids[0]) : json(c.eos_ids);
  return out;
}

}  // namespace tandem::model
