// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/config.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/model/family/family.h"

namespace tandem::model {
namespace {

using nlohmann::json;

int64_t positive(const json& config, const char* key, const std::string& where) {
  if (!config.contains(key)) throw UserError(where, join_text("no \"", key, "\""), "a Hugging Face config.json");
  const json& v = config.at(key);
  if (!v.is_number_integer() || v.get<int64_t>() <= 0)
    throw UserError(where, join_text("\"", key, "\" is ", v.dump()), "a positive integer");
  return v.get<int64_t>();
}

void read_eos(const json& config, std::vector<int32_t>& ids) {
  if (!config.contains("eos_token_id")) return;
  const json& v = config.at("eos_token_id");
  const auto add = [&](int32_t id) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  if (v.is_number_integer()) add(v.get<int32_t>());
  if (v.is_array())
    for (const json& id : v) add(id.get<int32_t>());
}

json read_json(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw UserError(path, "cannot be read", "a Hugging Face model directory");
  json parsed = json::parse(in, nullptr, false);
  if (!parsed.is_object()) throw UserError(path, "is not a JSON object", "a Hugging Face config.json");
  return parsed;
}

}  // namespace

int64_t ModelConfig::num_parameters() const {
  int64_t total = 0;
  for (const family::Parameter& p : family::parameters(*this)) {
    int64_t n = 1;
    for (int64_t extent : p.shape) n *= extent;
    total += n;
  }
  return total;
}

ModelConfig parse_config(const json& config, const std::string& where) {
  ModelConfig c;
  c.family = config.value("model_type", std::string());
  const family::Traits traits = family::traits(c.family, where);
  c.vocab_size = positive(config, "vocab_size", where);
  c.hidden_size = positive(config, "hidden_size", where);
  c.intermediate_size = positive(config, "intermediate_size", where);
  c.num_layers = positive(config, "num_hidden_layers", where);
  c.num_heads = positive(config, "num_attention_heads", where);
  c.num_kv_heads = config.contains("num_key_value_heads") ? positive(config, "num_key_value_heads", where) : c.num_heads;
  c.head_dim = config.contains("head_dim") && !config["head_dim"].is_null() ? positive(config, "head_dim", where) : c.hidden_size / c.num_heads;
  c.max_positions = positive(config, "max_position_embeddings", where);
  c.rope_theta = config.value("rope_theta", 10000.0);
  if (config.contains("rope_parameters") && config["rope_parameters"].is_object())
    c.rope_theta = config["rope_parameters"].value("rope_theta", c.rope_theta);
  c.norm_eps = config.value("rms_norm_eps", 1e-6);
  c.tied_embeddings = config.value("tie_word_embeddings", false);
  c.qkv_bias = traits.qkv_bias;
  read_eos(config, c.eos_ids);
  if (c.num_heads % c.num_kv_heads != 0)
    throw UserError(where, join_text(c.num_heads, " heads over ", c.num_kv_heads, " kv heads"), "a multiple");
  if (c.head_dim % 2 != 0) throw UserError(where, join_text("head_dim is ", c.head_dim), "an even number, for RoPE");
  if (config.value("hidden_act", std::string("silu")) != "silu")
    throw UserError(where, "hidden_act is " + config["hidden_act"].dump(), "\"silu\"");
  if (config.value("use_sliding_window", false)) throw UserError(where, "use_sliding_window is on", "full attention");
  if (config.contains("rope_scaling") && !config["rope_scaling"].is_null())
    throw UserError(where, "rope_scaling is " + config["rope_scaling"].dump(), "null: scaled RoPE is not supported for " + c.family);
  return c;
}

ModelConfig read_config(const std::string& dir) {
  const std::string path = dir + "/config.json";
  ModelConfig config = parse_config(read_json(path), path);
  const std::string generation = dir + "/generation_config.json";
  if (std::ifstream(generation)) read_eos(read_json(generation), config.eos_ids);
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
  if (!c.eos_ids.empty()) out["eos_token_id"] = c.eos_ids.size() == 1 ? json(c.eos_ids[0]) : json(c.eos_ids);
  return out;
}

}  // namespace tandem::model
