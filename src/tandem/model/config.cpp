// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/config.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/input/file_kind.h"
#include "tandem/base/json_file.h"
#include "tandem/base/log.h"
#include "tandem/model/config_keys.h"
#include "tandem/model/family/family.h"

namespace tandem::model {
namespace {

using nlohmann::json;

void read_eos(const ConfigKeys& keys, int64_t vocab_size, std::vector<int32_t>& ids) {
  constexpr const char* kKey = "eos_token_id";
  if (!keys.has(kKey)) return;
  const json& v = keys.at(kKey);
  for (const json& id : v.is_array() ? v : json::array({v})) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > kMostRows)
      keys.refuse(kKey, "a token id, or a list of token ids");
    const auto number = id.get<int32_t>();
    if (number >= vocab_size)
      log::warning_once(join_text(keys.where(), ": ", kKey, " ", number, " ends no response: the vocabulary has ", vocab_size, " tokens"));
    if (std::find(ids.begin(), ids.end(), number) == ids.end()) ids.push_back(number);
  }
}

// One text, or a list of texts.
void read_stop_strings(const ConfigKeys& keys, std::vector<std::string>& texts) {
  constexpr const char* kKey = "stop_strings";
  if (!keys.has(kKey)) return;
  const json& v = keys.at(kKey);
  for (const json& text : v.is_array() ? v : json::array({v})) {
    if (!text.is_string()) keys.refuse(kKey, "a text, or a list of texts");
    if (text != "") texts.push_back(text.get<std::string>());
  }
}

// As transformers counts: what stands at the top of the file, else what the object says, else max_position_embeddings.
int64_t original_positions(const ConfigKeys& keys, const ConfigKeys& rope, int64_t max_positions) {
  constexpr const char* kKey = "original_max_position_embeddings";
  if (keys.has(kKey)) {
    const int64_t outside = keys.positive(kKey, kMostRows);
    if (rope.has(kKey) && rope.at(kKey) != outside)
      log::warning_once(join_text(keys.where(), ": its ", kKey, " of ", outside, " takes the place of the ", rope.at(kKey).dump(),
                                  " that stands in ", rope.where()));
    return outside;
  }
  if (rope.has(kKey)) return rope.positive(kKey, kMostRows);
  log::warning_once(join_text(rope.where(), ": no ", kKey, "; the max_position_embeddings of ", max_positions, " counts for it"));
  return max_positions;
}

void read_llama3(const ConfigKeys& rope, RopeScaling& s) {
  s.factor = rope.number("factor");
  s.low_freq_factor = rope.number("low_freq_factor");
  s.high_freq_factor = rope.number("high_freq_factor");
  if (s.high_freq_factor <= s.low_freq_factor) rope.refuse("high_freq_factor", join_text("above low_freq_factor, ", s.low_freq_factor));
}

void read_yarn(const ConfigKeys& rope, int64_t max_positions, RopeScaling& s) {
  const bool is_null = rope.contains("factor") && !rope.has("factor");  // then it follows from the two lengths
  s.factor = is_null ? static_cast<double>(max_positions) / static_cast<double>(s.original_max_positions) : rope.number("factor");
  const std::pair<const char*, double*> optional[] = {{"beta_fast", &s.beta_fast},
                                                      {"beta_slow", &s.beta_slow},
                                                      {"mscale", &s.mscale},
                                                      {"mscale_all_dim", &s.mscale_all_dim}};
  for (const auto& [key, value] : optional)
    if (rope.has(key) && rope.at(key) != 0) *value = rope.number(key);  // 0 is none of it
  if (rope.has("attention_factor")) s.attention_factor = rope.number("attention_factor");
  if (!rope.flag("truncate", true)) rope.refuse("truncate", "true");
  if (s.beta_fast <= s.beta_slow)
    throw UserError(rope.where(), join_text("beta_fast is ", s.beta_fast), join_text("above beta_slow, ", s.beta_slow));
}

std::string rope_type(const ConfigKeys& rope) {
  const bool is_named = rope.has("rope_type");
  if (is_named && rope.has("type") && rope.at("type") != rope.at("rope_type"))
    rope.refuse("type", "the same as rope_type, " + rope.at("rope_type").dump());
  return is_named ? rope.text("rope_type", "") : rope.has("type") ? rope.text("type", "") : "default";
}

// What the type has no use for is said, as by transformers. One rope for all layers is read, and it turns whole heads.
void check_rope_keys(const ConfigKeys& rope, const std::string& type) {
  static const std::map<std::string, std::set<std::string>> kRead = {
      {"default", {}},
      {"linear", {"factor"}},
      {"dynamic", {"factor"}},
      {"llama3", {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}},
      {"yarn",
       {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor",
        "truncate"}}};
  const auto& read = kRead.at(type);
  for (const auto& [key, value] : rope.items()) {
    if (value.is_object()) rope.refuse(key.c_str(), "one rope for all layers: rope_type, rope_theta and what they need");
    if (value.is_null() || read.count(key) || key == "rope_type" || key == "type" || key == "rope_theta") continue;
    if (key == "partial_rotary_factor") {
      if (value != 1) rope.refuse(key.c_str(), "1");
      continue;
    }
    log::warning_once(join_text(rope.where(), ": \"", key, "\" is not read by rope_type \"", type, "\""));
  }
}

void read_rope_object(const ConfigKeys& keys, const ConfigKeys& rope, ModelConfig& c) {
  RopeScaling& s = c.rope_scaling;
  s.type = rope_type(rope);
  if (s.type == "llama3" || s.type == "yarn") s.original_max_positions = original_positions(keys, rope, c.max_positions);
  if (s.type == "llama3") read_llama3(rope, s);
  else if (s.type == "yarn") read_yarn(rope, c.max_positions, s);
  else if (s.type == "linear" || s.type == "dynamic") s.factor = rope.number("factor");
  else if (s.type != "default")
    throw UserError(rope.where(), "the rope_type is \"" + s.type + "\"",
                    "\"default\", \"linear\", \"dynamic\", \"llama3\" or \"yarn\" for " + c.family);
  check_rope_keys(rope, s.type);
  c.rope_theta = rope.number("rope_theta", c.rope_theta);
}

// transformers 4 writes rope_theta and rope_scaling, transformers 5 puts both into rope_parameters. It takes rope_scaling in the place
// of rope_parameters where both are there, with a rope_theta of its own.
void read_rope(const ConfigKeys& keys, ModelConfig& c) {
  constexpr const char *kScaling = "rope_scaling", *kParameters = "rope_parameters", *kTheta = "rope_theta";
  for (const char* key : {"partial_rotary_factor", "rotary_pct"})
    if (keys.has(key) && keys.at(key) != 1) keys.refuse(key, "1");
  c.rope_theta = keys.number(kTheta, c.rope_theta);
  const double outside = c.rope_theta;
  const auto is_there = [&](const char* key) { return keys.has(key) && !keys.inside(key).is_empty(); };
  const bool scaled = is_there(kScaling), both = scaled && is_there(kParameters);
  if (!scaled && !is_there(kParameters)) return;
  const ConfigKeys rope = keys.inside(scaled ? kScaling : kParameters);
  read_rope_object(keys, rope, c);
  if (keys.has(kTheta) && c.rope_theta != outside)
    log::warning_once(join_text(rope.where(), ": its rope_theta of ", c.rope_theta, " takes the place of the ", outside, " beside it"));
  if (!both || keys.at(kScaling) == keys.at(kParameters)) return;
  const ConfigKeys other = keys.inside(kParameters);
  if (const double theta = other.number(kTheta, outside); theta != c.rope_theta)
    throw UserError(other.where(),
                    join_text("rope_theta is ", theta, ", and ", c.rope_theta, " by rope_scaling beside it, which takes its place"),
                    "one of the two objects, or the same rope_theta in both");
  if (rope_type(other) != "default") log::warning_once(join_text(other.where(), ": rope_scaling beside it takes its place"));
  else check_rope_keys(other, "default");
}

void read_latent_attention(const ConfigKeys& keys, ModelConfig& c) {
  MlaConfig& m = c.mla;
  m.q_rank = keys.positive("q_lora_rank", kMostWidth, 0);
  m.kv_rank = keys.positive("kv_lora_rank", kMostWidth);
  m.nope_dim = keys.positive("qk_nope_head_dim", kMostWidth);
  m.rope_dim = keys.positive("qk_rope_head_dim", kMostWidth);
  m.v_dim = keys.positive("v_head_dim", kMostWidth);
  m.interleaved = keys.flag("rope_interleave", true);
  c.head_dim = m.rope_dim;  // what is rotated
  c.num_kv_heads = c.num_heads;
}

void read_choice(const ConfigKeys& keys, MoeConfig& e, bool normalizes) {
  e.experts_per_token = keys.positive("num_experts_per_tok", kMostWidth);
  if (e.experts_per_token > e.num_experts)
    keys.refuse("num_experts_per_tok", join_text("at most the ", e.num_experts, " experts"));
  e.intermediate_size = keys.positive("moe_intermediate_size", kMostWidth);
  e.normalize = keys.flag("norm_topk_prob", normalizes);
}

void read_qwen_experts(const ConfigKeys& keys, MoeConfig& e) {
  e.num_experts = keys.positive(keys.has("num_local_experts") ? "num_local_experts" : "num_experts", kMostWidth);  // transformers 5, 4
  read_choice(keys, e, false);
  e.sparse_step = keys.positive("decoder_sparse_step", kMostLayers, 1);
  if (!keys.has("mlp_only_layers")) return;
  for (const json& layer : keys.at("mlp_only_layers")) {
    if (!layer.is_number_unsigned()) keys.refuse("mlp_only_layers", "a list of layers");
    e.dense_layers.push_back(layer.get<int64_t>());
  }
}

// What an absent key means is transformers' own, that of the published model; null is none.
void read_deepseek_experts(const ConfigKeys& keys, MoeConfig& e) {
  const auto absent = [&](const char* key, int64_t means, int64_t null) { return keys.contains(key) ? null : means; };
  e.num_experts = keys.positive("n_routed_experts", kMostWidth);
  read_choice(keys, e, true);
  e.num_shared_experts = keys.whole("n_shared_experts", kMostWidth, absent("n_shared_experts", 1, 0));
  e.num_groups = keys.positive("n_group", kMostWidth, absent("n_group", 8, 1));
  e.top_groups = keys.positive("topk_group", kMostWidth, absent("topk_group", 4, 1));
  e.scaling = keys.number("routed_scaling_factor", 2.5);
  e.first_sparse_layer = keys.whole("first_k_dense_replace", kMostLayers, absent("first_k_dense_replace", 3, 0));
  e.sigmoid = e.correction_bias = true;
  if (keys.text("scoring_func", "sigmoid") != "sigmoid") keys.refuse("scoring_func", "\"sigmoid\"");
  if (keys.text("topk_method", "noaux_tc") != "noaux_tc") keys.refuse("topk_method", "\"noaux_tc\"");
  if (keys.positive("moe_layer_freq", kMostLayers, 1) != 1) keys.refuse("moe_layer_freq", "1");
  const auto refuse_group = [&](const char* key, int64_t value, const std::string& wanted) {
    const char* unsaid = keys.has(key) ? "" : ", as it is where the file does not say it";
    throw UserError(keys.where(), join_text("\"", key, "\" is ", value, unsaid), wanted);
  };
  if (e.num_experts % e.num_groups != 0 || e.num_experts / e.num_groups < 2)
    refuse_group("n_group", e.num_groups, join_text("groups of two or more of the ", e.num_experts, " experts"));
  if (e.top_groups > e.num_groups || e.top_groups * (e.num_experts / e.num_groups) < e.experts_per_token)
    refuse_group("topk_group", e.top_groups, join_text("at most ", e.num_groups, ", and room for ", e.experts_per_token, " experts"));
}

// As transformers counts: the names of the labels, else num_labels, else two. 0 for a model that is no classifier.
int64_t read_num_labels(const ConfigKeys& keys, const std::string& classifier) {
  constexpr const char *kClasses = "architectures", *kNames = "id2label";
  if (!keys.has(kClasses)) return 0;
  const json& classes = keys.at(kClasses);
  if (!classes.is_array()) keys.refuse(kClasses, "a list of classes");
  if (std::find(classes.begin(), classes.end(), json(classifier)) == classes.end()) return 0;
  if (!keys.has(kNames)) return keys.positive("num_labels", kMostWidth, 2);
  const json& names = keys.at(kNames);
  const auto count = static_cast<int64_t>(names.size());
  if (!names.is_object() || count == 0) keys.refuse(kNames, "an object with the name of each label");
  return count;
}

// Some configs say -1 for none.
int32_t read_pad(const ConfigKeys& keys) {
  constexpr const char* kKey = "pad_token_id";
  if (!keys.has(kKey) || keys.at(kKey) == -1) return -1;
  return static_cast<int32_t>(keys.whole(kKey, kMostRows, -1));
}

json rope_json(const RopeScaling& s) {
  json out = {{"rope_type", s.type}, {"factor", s.factor}};
  if (s.type == "linear" || s.type == "dynamic") return out;
  out["original_max_position_embeddings"] = s.original_max_positions;
  if (s.type == "llama3") {
    out["low_freq_factor"] = s.low_freq_factor;
    out["high_freq_factor"] = s.high_freq_factor;
    return out;
  }
  out["beta_fast"] = s.beta_fast;
  out["beta_slow"] = s.beta_slow;
  if (s.mscale > 0) out["mscale"] = s.mscale;
  if (s.mscale_all_dim > 0) out["mscale_all_dim"] = s.mscale_all_dim;
  if (s.attention_factor > 0) out["attention_factor"] = s.attention_factor;
  return out;
}

void write_latent_attention(const MlaConfig& m, json& out) {
  out["q_lora_rank"] = m.q_rank > 0 ? json(m.q_rank) : json();
  out["kv_lora_rank"] = m.kv_rank;
  out["qk_nope_head_dim"] = m.nope_dim;
  out["qk_rope_head_dim"] = m.rope_dim;
  out["v_head_dim"] = m.v_dim;
  out["rope_interleave"] = m.interleaved;
  out.erase("head_dim");
}

void write_experts(const MoeConfig& e, json& out) {
  out["num_experts_per_tok"] = e.experts_per_token;
  out["moe_intermediate_size"] = e.intermediate_size;
  out["norm_topk_prob"] = e.normalize;
  if (!e.sigmoid) {
    out["num_experts"] = e.num_experts;
    out["decoder_sparse_step"] = e.sparse_step;
    out["mlp_only_layers"] = e.dense_layers;
    return;
  }
  out["n_routed_experts"] = e.num_experts;
  out["n_shared_experts"] = e.num_shared_experts;
  out["n_group"] = e.num_groups;
  out["topk_group"] = e.top_groups;
  out["routed_scaling_factor"] = e.scaling;
  out["first_k_dense_replace"] = e.first_sparse_layer;
  out["moe_layer_freq"] = 1;
  out["scoring_func"] = "sigmoid";
  out["topk_method"] = "noaux_tc";
}

// The names that transformers gives where nobody gave any.
void write_labels(const ModelConfig& c, json& out) {
  for (int64_t i = 0; i < c.num_labels; ++i) {
    const std::string name = "LABEL_" + std::to_string(i);
    out["id2label"][std::to_string(i)] = name;
    out["label2id"][name] = i;
  }
  if (c.pad_id >= 0) out["pad_token_id"] = c.pad_id;
}

}  // namespace

bool ModelConfig::is_sparse(int64_t layer) const {
  return moe.num_experts > 0 && layer >= moe.first_sparse_layer && (layer + 1) % moe.sparse_step == 0 &&
         std::find(moe.dense_layers.begin(), moe.dense_layers.end(), layer) == moe.dense_layers.end();
}

ModelConfig parse_config(const json& config, const std::string& where) {
  const ConfigKeys keys(config, where);
  ModelConfig c;
  c.family = keys.text("model_type", "");
  const family::Traits traits = family::traits(c.family, where);
  c.vocab_size = keys.positive("vocab_size", kMostRows);
  c.hidden_size = keys.positive("hidden_size", kMostWidth);
  c.intermediate_size = keys.positive("intermediate_size", kMostWidth);
  c.num_layers = keys.positive("num_hidden_layers", kMostLayers);
  c.num_heads = keys.positive("num_attention_heads", kMostWidth);
  c.num_kv_heads = keys.positive("num_key_value_heads", kMostWidth, c.num_heads);
  c.head_dim = keys.positive("head_dim", kMostWidth, c.hidden_size / c.num_heads);
  c.max_positions = keys.positive("max_position_embeddings", kMostRows);
  read_rope(keys, c);
  c.norm_eps = keys.number("rms_norm_eps", c.norm_eps);
  c.tied_embeddings = keys.flag("tie_word_embeddings");
  c.qkv_bias = traits.qkv_bias;
  c.head_norm = traits.head_norm;
  if (traits.latent) read_latent_attention(keys, c);
  if (traits.experts && traits.latent) read_deepseek_experts(keys, c.moe);
  else if (traits.experts) read_qwen_experts(keys, c.moe);
  // Qwen2 has its bias on q, k and v without saying so.
  for (const char* key : {"attention_bias", "mlp_bias"})
    if (keys.flag(key)) keys.refuse(key, "false for " + c.family);
  read_eos(keys, c.vocab_size, c.eos_ids);
  c.num_labels = read_num_labels(keys, family::classifier_class(traits));
  if (c.num_labels > 0) c.pad_id = read_pad(keys);
  if (c.num_heads % c.num_kv_heads != 0)
    throw UserError(where, join_text(c.num_heads, " heads over ", c.num_kv_heads, " kv heads"), "a multiple");
  if (c.head_dim % 2 != 0 || c.head_dim == 0) throw UserError(where, join_text("head_dim is ", c.head_dim), "an even number, for RoPE");
  if (c.q_size() > kMostWidth) throw UserError(where, join_text(c.num_heads, " heads of ", c.head_dim), join_text("at most ", kMostWidth));
  if (keys.text("hidden_act", "silu") != "silu") keys.refuse("hidden_act", "\"silu\"");
  if (keys.has("layer_types"))
    for (const json& type : keys.at("layer_types"))
      if (type != "full_attention") keys.refuse("layer_types", "\"full_attention\" in all layers");
  if (keys.flag("use_sliding_window")) throw UserError(where, "use_sliding_window is on", "full attention");
  return c;
}

namespace {

void require_use(const ModelConfig& c, ModelUse use, const std::string& path) {
  const family::Traits traits = family::traits(c.family, path);
  const std::string language = family::language_class(traits), classifier = family::classifier_class(traits);
  if (use == ModelUse::kLanguage && c.num_labels > 0)
    throw UserError(path, "is that of a reward model, which has scores in place of an lm_head",
                    "a language model, " + language + "; reward.model is the place for a reward model");
  if (use == ModelUse::kScores && c.num_labels == 0)
    throw UserError(path, "is that of a language model, which has no score head", "a reward model, " + classifier + " in architectures");
}

constexpr const char* kAdapterConfig = "/adapter_config.json";

// As PEFT names it; "" where it does not.
std::string base_of_adapter(const std::string& dir) {
  const json config = read_json_object(dir + kAdapterConfig);
  const auto base = config.find("base_model_name_or_path");
  return base != config.end() && base->is_string() ? base->get<std::string>() : "";
}

// What is easily given for a model: a file, the adapter of one, or a run folder or checkpoint for the model below it.
void check_is_model(const std::string& dir) {
  std::error_code failed;
  if (!std::filesystem::is_directory(dir)) {
    const std::string kind = kind_of_file(dir);
    throw UserError(dir, kind.empty() ? "is no directory" : "is " + kind + ", no directory",
                    "a Hugging Face model directory on this machine, or OWNER/NAME on a hub; `scripts/get OWNER/NAME` fetches one, or says "
                    "what to put where by hand");
  }
  if (std::filesystem::exists(dir + "/config.json", failed)) return;
  if (std::filesystem::exists(dir + kAdapterConfig, failed)) {
    const std::string base = base_of_adapter(dir), merged = dir + "/../hf";
    throw UserError(dir, "holds a PEFT adapter" + (base.empty() ? std::string() : " of `" + base + "`") + " and no model",
                    std::filesystem::exists(merged + "/config.json", failed)
                        ? "the merged model, " + std::filesystem::path(merged).lexically_normal().string()
                        : "the base model with the adapter merged into it: PEFT's merge_and_unload(), then save_pretrained(DIR)");
  }
  for (const char* below : {"/hf", "/latest/hf", "/checkpoint/latest/hf"})
    if (std::filesystem::exists(dir + below + "/config.json", failed))
      throw UserError(dir, "is not the directory of a model: it has no config.json", dir + below);
}

}  // namespace

ModelConfig read_config(const std::string& dir, ModelUse use) {
  const std::string path = dir + "/config.json";
  check_is_model(dir);
  if (std::filesystem::exists(dir + kAdapterConfig))
    log::warning_once(dir + ": the PEFT adapter beside the model (adapter_config.json) is not applied; merge it first to use it");
  ModelConfig config = parse_config(read_json_object(path), path);
  require_use(config, use, path);
  const std::string generation = dir + "/generation_config.json";
  if (std::filesystem::exists(generation)) {
    const json said = read_json_object(generation);
    const ConfigKeys keys(said, generation);
    read_eos(keys, config.vocab_size, config.eos_ids);
    read_stop_strings(keys, config.stop_strings);
  }
  return config;
}

json to_json(const ModelConfig& c, const std::string& dtype) {
  const family::Traits traits = family::traits(c.family, "config");
  json out = {{"architectures", {c.num_labels > 0 ? family::classifier_class(traits) : family::language_class(traits)}},
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
  if (c.rope_scaling.type != "default") out["rope_scaling"] = rope_json(c.rope_scaling);
  if (c.mla.kv_rank > 0) write_latent_attention(c.mla, out);
  if (c.moe.num_experts > 0) write_experts(c.moe, out);
  if (c.num_labels > 0) write_labels(c, out);
  if (!c.eos_ids.empty()) out["eos_token_id"] = c.eos_ids.size() == 1 ? json(c.eos_ids[0]) : json(c.eos_ids);
  return out;
}

}  // namespace tandem::model
