// SPDX-License-Identifier: Apache-2.0
#include "tandem/serve/generation_defaults.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "tandem/base/json_file.h"
#include "tandem/base/log.h"
#include "tandem/text/tokenizer.h"

namespace tandem::serve {
namespace {

using nlohmann::json;

// What each key has where it changes nothing; null for a list or an object, of which only an empty one does not.
const std::pair<const char*, json> kUnknownHere[] = {
    {"suppress_tokens", {}},       {"begin_suppress_tokens", {}}, {"bad_words_ids", {}},           {"force_words_ids", {}},
    {"constraints", {}},           {"sequence_bias", {}},         {"forced_bos_token_id", {}},     {"forced_eos_token_id", {}},
    {"forced_decoder_ids", {}},    {"watermarking_config", {}},   {"exponential_decay_length_penalty", {}},
    {"repetition_penalty", 1.0},   {"no_repeat_ngram_size", 0},   {"encoder_repetition_penalty", 1.0},
    {"encoder_no_repeat_ngram_size", 0}, {"min_length", 0},       {"min_new_tokens", 0},           {"min_p", 0.0},
    {"typical_p", 1.0},            {"epsilon_cutoff", 0.0},       {"eta_cutoff", 0.0},             {"top_h", {}},
    {"penalty_alpha", 0.0},        {"guidance_scale", 1.0},       {"num_beams", 1},                {"num_beam_groups", 1},
    {"diversity_penalty", 0.0},    {"dola_layers", {}},           {"max_time", {}},
    {"presence_penalty", 0.0},     {"frequency_penalty", 0.0},    {"logit_bias", {}},              {"stop_words_ids", {}},
    {"stop_token_ids", {}},        {"stop", {}},                  {"num_return_sequences", 1},     {"token_healing", {}}};

bool says_something(const json& value, const json& neutral) {
  return !value.is_null() && value != neutral && !(value.is_structured() && value.empty()) && value != false;
}

}  // namespace

void say_not_followed(const std::string& dir, const rollout::Sampling& sampling) {
  const std::string path = dir + "/generation_config.json";
  if (!std::filesystem::exists(path)) return;
  const json said = read_json_object(path);
  std::string text;
  const auto add = [&](const char* key) {
    text += (text.empty() ? "" : ", ") + std::string(key) + " " + said.at(key).dump().substr(0, 60);
  };
  const auto differs = [&](const char* key, double value) {
    return said.contains(key) && !said.at(key).is_null() && said.at(key) != value;
  };
  const bool greedy = sampling.temperature == 0, asks_greedy = said.contains("do_sample") && said.at("do_sample") == false;
  if (asks_greedy && !greedy) add("do_sample");
  if (!asks_greedy) {
    if (differs("temperature", sampling.temperature)) add("temperature");
    if (!greedy && differs("top_p", sampling.top_p)) add("top_p");
    if (!greedy && differs("top_k", static_cast<double>(sampling.top_k))) add("top_k");
  }
  if (differs("max_new_tokens", static_cast<double>(sampling.max_new_tokens))) add("max_new_tokens");
  else if (differs("max_length", 20)) add("max_length");  // what transformers has where nobody says
  for (const auto& [key, neutral] : kUnknownHere)
    if (said.contains(key) && says_something(said.at(key), neutral)) add(key);
  if (said.contains("stop_strings") && says_something(said.at("stop_strings"), {}) && !text::Tokenizer::present_in(dir))
    add("stop_strings");
  if (!text.empty()) log::warning_once(path + " is not followed in: " + text + "; the command's or the recipe's sampling counts");
}

}  // namespace tandem::serve
