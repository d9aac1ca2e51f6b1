// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/config.h"

#include <gtest/gtest.h>

#include <ATen/ops/equal.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "../../error_text.h"
#include "../../temporary_folder.h"
#include "../../tiny_model.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/model/rope.h"

namespace tandem::model {
namespace {

using nlohmann::json;

json with(const char* key, const json& value) {
  json config = to_json(test::tiny_config(), "float32");
  config[key] = value;
  return config;
}

std::string refusal(const json& config) {
  try {
    (void)parse_config(config, "dir/config.json");
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

TEST(ModelConfig, AValueOfTheWrongKindNamesFileAndKey) {
  const std::pair<const char*, json> wrong[] = {{"rope_theta", nullptr},
                                                {"rope_theta", "ten thousand"},
                                                {"rope_theta", 0},
                                                {"rms_norm_eps", "1e-6"},
                                                {"tie_word_embeddings", nullptr},
                                                {"model_type", nullptr},
                                                {"hidden_act", 1},
                                                {"use_sliding_window", nullptr},
                                                {"eos_token_id", json::array({"a"})},
                                                {"eos_token_id", -1},
                                                {"eos_token_id", "</s>"},
                                                {"hidden_size", 1e9},
                                                {"vocab_size", int64_t{1} << 40},
                                                {"num_hidden_layers", int64_t{1} << 40},
                                                {"max_position_embeddings", int64_t{1} << 62},
                                                {"head_dim", "8"},
                                                {"rope_scaling", "yarn"},
                                                {"rope_parameters", json::array()}};
  for (const auto& [key, value] : wrong) {
    const std::string message = refusal(with(key, value));
    EXPECT_TRUE(message.starts_with("dir/config.json")) << key << ": " << message;
    EXPECT_NE(message.find(key), std::string::npos) << message;
  }
}

TEST(ModelConfig, FilesThatNestTooDeepAreRefused) {
  const test::TemporaryFolder folder("config");
  const std::string deep = "{\"a\": " + std::string(100000, '[') + std::string(100000, ']') + "}";
  const auto error = [&] { return test::error_of([&] { (void)read_config(folder.path()); }); };
  write_file(folder / "config.json", deep);
  EXPECT_NE(error().find("/config.json: nests deeper than 500 levels"), std::string::npos) << error();
  write_file(folder / "config.json", to_json(test::tiny_config(), "float32").dump());
  EXPECT_EQ(error(), "");
  write_file(folder / "generation_config.json", deep);
  EXPECT_NE(error().find("generation_config.json: nests deeper than 500 levels"), std::string::npos) << error();
}

TEST(ModelConfig, LlamaStretchesItsRopeAndReadsBack) {
  json llama = with("model_type", "llama");
  llama["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0},
                           {"original_max_position_embeddings", 64}};
  const ModelConfig c = parse_config(llama, "dir/config.json");
  EXPECT_FALSE(c.qkv_bias);
  EXPECT_EQ(c.rope_scaling.type, "llama3");
  const ModelConfig again = parse_config(to_json(c, "float32"), "again");
  EXPECT_EQ(again.rope_scaling.factor, 8.0);
  EXPECT_EQ(again.rope_scaling.original_max_positions, 64);
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    json lacking = llama;
    lacking["rope_scaling"].erase(key);
    EXPECT_NE(refusal(lacking).find(key), std::string::npos);
  }
  llama["rope_scaling"]["high_freq_factor"] = 0.5;
  EXPECT_NE(refusal(llama).find("high_freq_factor"), std::string::npos);
  EXPECT_NE(refusal(with("attention_bias", true)).find("attention_bias"), std::string::npos);
}

// What is said on standard error.
std::string said_by(const std::function<void()>& action) {
  ::testing::internal::CaptureStderr();
  action();
  return ::testing::internal::GetCapturedStderr();
}

json with_rope(const json& keys) {
  json config = to_json(test::tiny_config(), "float32");
  for (const char* key : {"rope_theta", "rope_scaling", "rope_parameters"}) config.erase(key);
  config.update(keys);
  return config;
}

const json kYarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
json plus(json object, const json& more) {
  object.update(more);
  return object;
}

// As transformers 5.24 reads them.
TEST(ModelConfig, RopeScalingTakesThePlaceOfRopeParameters) {
  const json plain = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  const struct {
    json keys;
    const char* type;
    double theta, factor;
  } read[] = {
      {{{"rope_parameters", plus(plain, {{"rope_theta", 1e4}})}, {"rope_scaling", kYarn}}, "yarn", 1e4, 4},
      {{{"rope_parameters", plain}, {"rope_scaling", plus(kYarn, {{"rope_theta", 5e5}})}}, "yarn", 5e5, 4},
      {{{"rope_parameters", plain}, {"rope_scaling", kYarn}, {"rope_theta", 5e5}}, "yarn", 5e5, 4},
      {{{"rope_parameters", plus(kYarn, {{"rope_theta", 1e4}})}, {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}}},
       "linear", 1e4, 2},
      {{{"rope_parameters", {{"rope_type", "default"}}}, {"rope_scaling", {{"type", "dynamic"}, {"factor", 3}}}}, "dynamic", 1e4, 3},
      {{{"rope_parameters", plain}, {"rope_scaling", json::object()}}, "default", 5e5, 1},
      {{{"rope_parameters", plain}, {"rope_scaling", nullptr}}, "default", 5e5, 1},
      {{{"rope_parameters", nullptr}, {"rope_scaling", kYarn}}, "yarn", 1e4, 4},
      {{{"rope_parameters", json::object()}, {"rope_theta", 7}}, "default", 7, 1},
      {{{"rope_parameters", plain}, {"rope_theta", 7}}, "default", 5e5, 1},
      {{{"rope_scaling", plus(kYarn, {{"rope_theta", 7}})}, {"rope_theta", 5e5}}, "yarn", 7, 4},
      {{{"rope_scaling", plus(kYarn, {{"factor", nullptr}, {"beta_fast", nullptr}})}, {"max_position_embeddings", 128}}, "yarn", 1e4, 2},
      {{{"rope_scaling", {{"rope_type", nullptr}, {"type", "linear"}, {"factor", 2}}}}, "linear", 1e4, 2},
  };
  for (const auto& one : read) {
    const ModelConfig c = parse_config(with_rope(one.keys), "here");
    EXPECT_EQ(c.rope_scaling.type, one.type) << one.keys;
    EXPECT_EQ(c.rope_theta, one.theta) << one.keys;
    EXPECT_EQ(c.rope_scaling.factor, one.factor) << one.keys;
    EXPECT_EQ(to_json(parse_config(to_json(c, "float32"), "again"), "float32"), to_json(c, "float32")) << one.keys;
  }
}

TEST(ModelConfig, WhatASayAboutPositionsIsNotFollowedInIsRefusedOrSaid) {
  const std::pair<json, const char*> refused[] = {
      {{{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}}, {"rope_scaling", kYarn}},
       "rope_theta is 1e+06, and 10000 by rope_scaling"},
      {{{"rope_parameters", {{"full_attention", kYarn}, {"sliding_attention", kYarn}}}}, "one rope for all layers"},
      {{{"rope_scaling", {{"rope_type", "longrope"}, {"factor", 4.0}}}}, "longrope"},
      {{{"rope_scaling", {{"type", "su"}, {"factor", 4.0}}}}, "su"},
      {{{"rope_scaling", {{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 4.0}}}}, "the same as rope_type"},
      {{{"rope_scaling", {{"rope_type", "linear"}}}}, "factor"},
      {{{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 0}}}}, "factor"},
      {{{"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}}}, "partial_rotary_factor"},
      {{{"partial_rotary_factor", 0.25}}, "partial_rotary_factor"},
      {{{"rotary_pct", 0.25}}, "rotary_pct"},
      {{{"layer_types", {"full_attention", "sliding_attention"}}}, "layer_types"},
  };
  for (const auto& [keys, what] : refused)
    EXPECT_NE(refusal(with_rope(keys)).find(what), std::string::npos) << keys << refusal(with_rope(keys));
  const std::pair<json, const char*> said[] = {
      {{{"rope_scaling", {{"factor", 2.0}}}}, "\"factor\" is not read by rope_type \"default\""},
      {{{"rope_scaling", plus(kYarn, {{"low_freq_factor", 1}})}}, "\"low_freq_factor\" is not read by rope_type \"yarn\""},
      {{{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}, {"rope_theta", 7}},
       "its rope_theta of 500000 takes the place of the 7"},
      {{{"rope_parameters", kYarn}, {"rope_scaling", {{"rope_type", "default"}}}}, "rope_scaling beside it takes its place"},
      {{{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}}}, "no original_max_position_embeddings; the max_position_embeddings"},
      {{{"rope_scaling", kYarn}, {"original_max_position_embeddings", 32}}, "of 32 takes the place of the 64"},
      {{{"eos_token_id", {0, 7000}}}, "eos_token_id 7000 ends no response"},
      {{{"rope_parameters", {{"rope_type", "default"}, {"mrope_section", {1, 2}}}}, {"rope_scaling", kYarn}},
       "\"mrope_section\" is not read"},
  };
  for (const auto& [keys, what] : said) {
    const std::string text = said_by([&, &keys = keys] { (void)parse_config(with_rope(keys), keys.dump()); });
    EXPECT_NE(text.find(what), std::string::npos) << keys << text;
  }
  const json agrees = {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}}}, {"rope_scaling", kYarn}};
  EXPECT_EQ(said_by([&] { (void)parse_config(with_rope(agrees), "here"); }), "");
}

TEST(ModelConfig, TheOriginalPositionsMayStandAtTheTopOrBeThoseOfTheModel) {
  const json bare = {{"rope_type", "yarn"}, {"factor", 4.0}}, llama3 = plus(bare, {{"rope_type", "llama3"},
                     {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}});
  const std::pair<json, int64_t> read[] = {
      {{{"rope_scaling", kYarn}, {"original_max_position_embeddings", 32}}, 32},
      {{{"rope_scaling", bare}, {"original_max_position_embeddings", 32}}, 32},
      {{{"rope_parameters", plus(llama3, {{"original_max_position_embeddings", 64}})}, {"original_max_position_embeddings", 32}}, 32},
      {{{"rope_scaling", kYarn}, {"original_max_position_embeddings", nullptr}}, 64},
      {{{"rope_scaling", bare}, {"max_position_embeddings", 128}}, 128},
      {{{"rope_scaling", llama3}, {"max_position_embeddings", 128}}, 128},
  };
  for (const auto& [keys, positions] : read) {
    const ModelConfig c = parse_config(with_rope(keys), "here");
    EXPECT_EQ(c.rope_scaling.original_max_positions, positions) << keys;
    EXPECT_EQ(parse_config(to_json(c, "float32"), "again").rope_scaling.original_max_positions, positions) << keys;
  }
  const json none_of_it = plus(kYarn, {{"mscale", 1.0}, {"mscale_all_dim", 0}, {"beta_slow", 0}});
  EXPECT_TRUE(at::equal(rope_table(parse_config(with_rope({{"rope_scaling", none_of_it}}), "here")),
                        rope_table(parse_config(with_rope({{"rope_scaling", kYarn}}), "here"))));
}

TEST(ModelConfig, ALinearRopeTurnsByPositionsOverTheFactor) {
  ModelConfig c = parse_config(with_rope(json::object()), "here");
  const at::Tensor plain = rope_table(c);
  c = parse_config(with_rope({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}}}), "here");
  const at::Tensor half = rope_table(c);
  EXPECT_TRUE(at::equal(half[6], plain[3]));
  EXPECT_FALSE(at::equal(half[6], plain[6]));
  c = parse_config(with_rope({{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}}}), "here");
  EXPECT_TRUE(at::equal(rope_table(c), plain)) << "within max_position_embeddings";
}

TEST(ModelConfig, AnAdapterIsNamedForWhatItIs) {
  const test::TemporaryFolder folder("adapter");
  const auto error = [&](const std::string& dir) { return test::error_of([&] { (void)read_config(dir); }); };
  std::filesystem::create_directories(folder / "adapter");
  write_file(folder / "adapter/adapter_config.json", R"({"base_model_name_or_path": "org/base", "peft_type": "LORA"})");
  EXPECT_NE(error(folder / "adapter").find("holds a PEFT adapter of `org/base` and no model"), std::string::npos);
  EXPECT_NE(error(folder / "adapter").find("merge_and_unload"), std::string::npos);
  write_file(folder / "adapter/adapter_config.json", R"({"base_model_name_or_path": null})");
  EXPECT_NE(error(folder / "adapter").find("holds a PEFT adapter and no model"), std::string::npos) << error(folder / "adapter");
  std::filesystem::create_directories(folder / "hf");
  write_file(folder / "hf/config.json", to_json(test::tiny_config(), "float32").dump());
  EXPECT_NE(error(folder / "adapter").find("the merged model, " + (folder / "hf")), std::string::npos) << error(folder / "adapter");
  EXPECT_EQ(error(folder / "hf"), "");
  write_file(folder / "hf/adapter_config.json", "{}");
  const std::string said = said_by([&] { (void)read_config(folder / "hf"); });
  EXPECT_NE(said.find("the PEFT adapter beside the model (adapter_config.json) is not applied"), std::string::npos) << said;
  EXPECT_EQ(said_by([&] { (void)read_config(folder / "hf"); }), "") << "once";
  write_file(folder / "model.gguf", "GGUF....");
  EXPECT_NE(error(folder / "model.gguf").find("is a GGUF file, no directory"), std::string::npos) << error(folder / "model.gguf");
}

TEST(ModelConfig, StopStringsOfTheGenerationConfigAreRead) {
  const test::TemporaryFolder folder("generation");
  write_file(folder / "config.json", to_json(test::tiny_config(), "float32").dump());
  const auto read = [&](const json& said) {
    write_file(folder / "generation_config.json", said.dump());
    return read_config(folder.path());
  };
  EXPECT_EQ(read({{"stop_strings", "END"}}).stop_strings, std::vector<std::string>{"END"});
  EXPECT_EQ(read({{"stop_strings", {"a", "", "b"}}}).stop_strings, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(read({{"stop_strings", nullptr}}).stop_strings.empty());
  EXPECT_EQ(read({{"eos_token_id", {2, 3, 2}}}).eos_ids, (std::vector<int32_t>{1, 2, 3}));
  for (const json& wrong : {json(3), json({1, 2}), json::object()})
    EXPECT_NE(test::error_of([&] { (void)read({{"stop_strings", wrong}}); }).find("stop_strings"), std::string::npos) << wrong;
}

TEST(ModelConfig, ScaledRopeIsRefusedInTheFormOfEitherTransformers) {
  const json longrope = {{"rope_type", "longrope"}, {"rope_theta", 1e6}, {"factor", 4.0}};
  EXPECT_NE(refusal(with("rope_parameters", longrope)).find("longrope"), std::string::npos);
  EXPECT_NE(refusal(with("rope_parameters", {{"rope_theta", nullptr}})).find("rope_theta"), std::string::npos);
  EXPECT_EQ(parse_config(with("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}), "here").rope_theta, 5e5);
  EXPECT_EQ(parse_config(with("rope_scaling", {{"rope_type", "default"}}), "here").rope_theta, 10000);
  EXPECT_EQ(parse_config(with("rope_scaling", nullptr), "here").rope_theta, 10000);
}

TEST(ModelConfig, ReadsBackWhatItWrote) {
  const ModelConfig c = parse_config(to_json(test::tiny_config(), "float32"), "here");
  EXPECT_EQ(to_json(c, "float32"), to_json(test::tiny_config(), "float32"));
  EXPECT_EQ(parse_config(with("eos_token_id", {3, 4, 3}), "here").eos_ids, (std::vector<int32_t>{3, 4}));
  EXPECT_TRUE(parse_config(with("eos_token_id", nullptr), "here").eos_ids.empty());
  for (const char* name : {"qwen3_moe", "deepseek_v3", "llama"}) {
    const ModelConfig sparse = read_config(std::string(TANDEM_SOURCE_DIR) + "/tests/fixtures/" + name);
    EXPECT_EQ(to_json(parse_config(to_json(sparse, "float32"), name), "float32"), to_json(sparse, "float32")) << name;
  }
}

const std::string kFixtures = std::string(TANDEM_SOURCE_DIR) + "/tests/fixtures/";

json json_of(const std::string& path) {
  std::ifstream in(path);
  return json::parse(in);
}

TEST(ModelConfig, AClassifierHasAsManyLabelsAsTransformersCounts) {
  json config = with("architectures", {"Qwen2ForSequenceClassification"});
  EXPECT_EQ(parse_config(config, "here").num_labels, 2) << "transformers leaves two out";
  config["num_labels"] = 1;
  EXPECT_EQ(parse_config(config, "here").num_labels, 1);
  config["id2label"] = {{"0", "a"}, {"1", "b"}, {"2", "c"}};
  EXPECT_EQ(parse_config(config, "here").num_labels, 3) << "names win";
  for (const auto& [key, value] : {std::pair<const char*, json>{"id2label", json::object()}, {"id2label", 3}, {"architectures", "Qwen2"}}) {
    json wrong = config;
    wrong[key] = value;
    EXPECT_NE(refusal(wrong).find(key), std::string::npos) << key;
  }
  config["architectures"] = {"LlamaForSequenceClassification"};
  EXPECT_EQ(parse_config(config, "here").num_labels, 0) << "of another family";
  EXPECT_EQ(parse_config(with("id2label", {{"0", "a"}}), "here").num_labels, 0) << "a language model may name labels";
}

TEST(ModelConfig, AClassifierIsWrittenAsTransformersWritesIt) {
  for (const char* name : {"qwen2_score1", "llama_score3", "qwen3_score1"}) {
    const json theirs = json_of(kFixtures + name + "/config.json");
    const ModelConfig read = read_config(kFixtures + name, ModelUse::kScores);
    const json ours = to_json(read, "float32");
    for (const char* key : {"architectures", "id2label", "label2id", "pad_token_id", "tie_word_embeddings"})
      EXPECT_EQ(ours.at(key), theirs.at(key)) << name << " " << key;
    EXPECT_EQ(to_json(parse_config(ours, name), "float32"), ours) << name;
  }
}

std::string refusal(const std::string& name, ModelUse use) {
  try {
    (void)read_config(kFixtures + name, use);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

TEST(ModelConfig, AModelIsOpenedForWhatItIs) {
  EXPECT_NE(refusal("qwen2_score1", ModelUse::kLanguage).find("a reward model"), std::string::npos);
  EXPECT_NE(refusal("llama", ModelUse::kScores).find("LlamaForSequenceClassification"), std::string::npos);
  for (const char* name : {"qwen2_score1", "llama"}) EXPECT_EQ(refusal(name, ModelUse::kEither), "");
}

// transformers 5.24: DeepseekV3Config().
TEST(ModelConfig, WhatADeepSeekDoesNotSayIsAsInThePublishedOne) {
  std::ifstream in(std::string(TANDEM_SOURCE_DIR) + "/tests/fixtures/deepseek_v3/config.json");
  json config = json::parse(in);
  config["n_routed_experts"] = 16;
  for (const char* key : {"norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group", "n_shared_experts",
                          "first_k_dense_replace"})
    config.erase(key);
  const MoeConfig e = parse_config(config, "here").moe;
  EXPECT_TRUE(e.normalize);
  EXPECT_EQ(e.scaling, 2.5);
  EXPECT_EQ(e.num_groups, 8);
  EXPECT_EQ(e.top_groups, 4);
  EXPECT_EQ(e.num_shared_experts, 1);
  EXPECT_EQ(e.first_sparse_layer, 3);
  for (const char* key : {"n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"}) config[key] = nullptr;
  const MoeConfig none = parse_config(config, "here").moe;
  EXPECT_EQ(none.num_groups * none.top_groups, 1);
  EXPECT_EQ(none.num_shared_experts + none.first_sparse_layer, 0);
  config.erase("n_group");
  config["n_routed_experts"] = 12;
  EXPECT_NE(refusal(config).find("\"n_group\" is 8, as it is where the file does not say it"), std::string::npos) << refusal(config);
}

TEST(ModelConfig, ExpertsThatCannotBeChosenAreRefused) {
  std::ifstream in(std::string(TANDEM_SOURCE_DIR) + "/tests/fixtures/deepseek_v3/config.json");
  const json deepseek = json::parse(in);
  const std::pair<const char*, json> wrong[] = {{"num_experts_per_tok", 9}, {"n_group", 3},         {"topk_group", 5},
                                                {"scoring_func", "softmax"}, {"moe_layer_freq", 2}, {"kv_lora_rank", 0}};
  for (const auto& [key, value] : wrong) {
    json config = deepseek;
    config[key] = value;
    EXPECT_NE(refusal(config).find(key), std::string::npos) << key;
  }
}

}  // namespace
}  // namespace tandem::model
