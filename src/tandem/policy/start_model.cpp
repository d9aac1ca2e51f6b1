// SPDX-License-Identifier: Apache-2.0
#include "tandem/policy/start_model.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "tandem/base/error.h"
#include "tandem/base/strings.h"
#include "tandem/checkpoint/model_export.h"
#include "tandem/data/source.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/model/parameters.h"
#include "tandem/reward/rule.h"
#include "tandem/text/tokenizer.h"
#include "tandem/text/tokenizer_files.h"

namespace tandem::policy {

namespace {

constexpr std::string_view kAlphabet = "0123456789+-*/= .,?";
// Rules that no answer without letters satisfies, and those that grade sums as well as texts.
constexpr std::array<std::string_view, 4> kLetterRules = {"choice", "code", "graded_math", "think_format"};
constexpr std::array<std::string_view, 8> kTextRules = {"dapo",  "dapo_slime", "deepscaler", "f1",
                                                        "gsm8k", "hendrycks",  "math",       "math_verify"};

[[noreturn]] void refuse_text(const std::string& why) {
  throw UserError("model.path", "is empty, and " + why + "; the small random model of a recipe without one knows digits and signs alone",
                  "--model DIR, a Hugging Face directory, or OWNER/NAME, which is fetched; `scripts/get OWNER/NAME` does it before");
}

std::vector<std::string> files_of(const data::Options& o) {
  std::vector<std::string> files;
  for (const data::MixPart& part : data::mix_of(o)) files.push_back(part.path);
  for (const data::EvalSet& set : data::eval_sets(o)) files.push_back(set.path);
  std::erase(files, "synthetic");
  return files;
}

// What people wrote of a prompt: its text, or the contents of its messages without the template around them.
std::string written_text(const data::Prompt& prompt) {
  if (prompt.messages.empty()) return prompt.text;
  std::string text;
  for (const auto& message : nlohmann::ordered_json::parse(prompt.messages).value("messages", nlohmann::ordered_json::array()))
    if (const auto content = message.find("content"); content != message.end() && content->is_string()) text += content->get<std::string>();
  return text;
}

}  // namespace

void check_random_model(const config::RunConfig& config) {
  const std::vector<std::string> files = files_of(config.data);
  const auto is_of = [](const auto& rules, const std::string& rule) { return std::ranges::find(rules, rule) != rules.end(); };
  for (const std::string& rule : reward::rule_names(config.reward))
    if (is_of(kLetterRules, rule) || (!files.empty() && is_of(kTextRules, rule))) refuse_text("the rule " + rule + " grades text");
  data::Options first = config.data;
  first.max_rows = 1;
  for (const std::string& file : files) {
    const std::unique_ptr<data::PromptSource> source = data::open_source(file, first, data::Split::kTrain);
    const std::string text = written_text(source->at(0));
    if (text.find_first_not_of(kAlphabet) != std::string::npos) refuse_text(source->where(0) + " holds text");
  }
}

void write_random_model(const std::string& dir, const config::ModelOptions& o, int64_t seed) {
  const std::string tokenizer_dir = dir + ".tokenizer";
  text::write_char_tokenizer(tokenizer_dir, kAlphabet, {"<pad>", "<eos>"});
  const text::Tokenizer tokenizer = text::Tokenizer::load(tokenizer_dir);
  model::ModelConfig c;
  c.family = "qwen2";
  c.vocab_size = (tokenizer.vocab_size() + 31) / 32 * 32;  // as kernels like it
  c.hidden_size = o.init_hidden;
  c.intermediate_size = o.init_intermediate;
  c.num_layers = o.init_layers;
  c.num_heads = o.init_heads;
  c.num_kv_heads = o.init_kv_heads;
  c.head_dim = o.init_hidden / o.init_heads;
  c.max_positions = o.init_max_positions;
  c.tied_embeddings = true;
  c.qkv_bias = true;
  c.eos_ids = {*tokenizer.eos_id()};
  const nlohmann::json json = model::to_json(c, "float32");
  (void)model::parse_config(json, "model.init_*");
  const model::ParameterTable table = model::parameter_table(c, {}, 0);
  at::Tensor flat = at::zeros({table.num_elements}, at::kFloat);
  model::initialize_parameters(table, flat, static_cast<uint64_t>(seed), o.init_deviation);
  std::map<std::string, at::Tensor> tensors;
  for (const model::ParameterEntry& e : table.entries) tensors[e.parameter.name] = table.view(flat, e);
  checkpoint::write_model_dir(dir, json, tensors, {.files = checkpoint::tokenizer_files(tokenizer_dir)});
}

}  // namespace tandem::policy
