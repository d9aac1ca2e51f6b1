// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/grpo_step.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/bench/report.h"
#include "tandem/model/config.h"
#include "tandem/runtime/run.h"
#include "tandem/text/tokenizer_files.h"

namespace tandem::bench {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// A folder that goes away with this object.
struct Scratch {
  std::string dir = join_text(fs::temp_directory_path().string(), "/tandem-bench-", ::getpid());
  Scratch() { fs::remove_all(dir), fs::create_directories(dir); }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(dir, ignored);
  }
};

// The model's files beside a tokenizer whose every id is one of the model's: prompts of exact length, sampling over the
// whole vocabulary.
std::string with_tokenizer(const std::string& model, const std::string& dir) {
  const model::ModelConfig config = model::read_config(model);
  std::string alphabet;
  for (char c = ' '; c <= '~'; ++c) alphabet += c;
  std::vector<std::string> fillers = {"<eos>"};
  const auto wanted = static_cast<size_t>(std::max<int64_t>(config.vocab_size - static_cast<int64_t>(alphabet.size()), 1));
  while (fillers.size() < wanted) fillers.push_back("<filler" + std::to_string(fillers.size()) + ">");
  text::write_char_tokenizer(dir, alphabet, fillers);
  for (const auto& entry : fs::directory_iterator(fs::absolute(model))) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("tokenizer")) fs::create_symlink(entry.path(), dir + "/" + name);
  }
  return dir;
}

std::string write_prompts(const std::string& path, const GrpoStepOptions& o) {
  std::ofstream out(path);
  const std::vector<std::string> words = {"sum", "of", "two", "and", "ten", "plus", "six", "one"};
  for (int64_t i = 0; i < o.prompts * (o.repeats + 1); ++i) {
    std::string text = "Q" + std::to_string(i) + ":";
    for (int64_t j = 0; static_cast<int64_t>(text.size()) < o.prompt_len; ++j)
      text += " " + words[static_cast<size_t>((i * 7 + j * 3) % 8)];
    text.resize(static_cast<size_t>(o.prompt_len), '.');
    out << json{{"question", text}, {"answer", "1"}}.dump() << "\n";
  }
  return path;
}

// Of about every third text, whatever the tokenizer: groups need a spread of scores, or the step has no backward pass.
constexpr const char* kPattern = "[02468BDFHJLNPRTVXZbdfhjlnprtvxz]>?$";

std::vector<json> read_lines(const std::string& path) {
  std::ifstream in(path);
  std::vector<json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

config::RunConfig grpo_config(const GrpoStepOptions& o, const std::string& dir) {
  const auto text = [](auto value) { return option_text(&value); };
  const auto whole = [](int64_t n) { return std::to_string(n); };
  return config::load_config(
      "", {{"run.dir", dir + "/run"}, {"run.steps", whole(o.repeats + 1)}, {"run.parity", o.parity ? "true" : "false"},
           {"run.seed", whole(o.seed)}, {"model.path", with_tokenizer(o.model, dir + "/model")}, {"model.dtype", o.dtype},
           {"data.train", write_prompts(dir + "/prompts.jsonl", o)}, {"data.shuffle", "false"}, {"reward.rule", "regex"},
           {"reward.pattern", kPattern}, {"rollout.max_new_tokens", whole(o.new_tokens)}, {"rollout.ignore_eos", "true"},
           {"rollout.max_running", whole(o.prompts * o.gens)}, {"algo.kl_coef", text(o.beta)},
           {"schedule.groups_per_step", whole(o.prompts)}, {"schedule.group_size", whole(o.gens)}, {"checkpoint.every_steps", "0"},
           {"parallel.threads", whole(o.threads)}});
}

}  // namespace

void describe(OptionVisitor& field, GrpoStepOptions& o) {
  field("prompts", o.prompts, "Prompts per step", at_least(1));
  field("gens", o.gens, "Responses per prompt", at_least(1));
  field("prompt_len", o.prompt_len, "Tokens of a prompt", at_least(1));
  field("new", o.new_tokens, "Tokens of a response", at_least(1));
  field("beta", o.beta, "Weight of the KL term", at_least(0));
  describe(field, static_cast<Computing&>(o));
}

json grpo_step(const GrpoStepOptions& o) {
  const Scratch scratch;
  runtime::RunRequest request;
  request.config = grpo_config(o, scratch.dir);
  log::quiet(true);
  runtime::run_rl(request);
  log::quiet(false);
  Figures figures;
  const double tokens = static_cast<double>(o.prompts * o.gens * o.new_tokens), bound = o.parity ? 0 : o.dtype == "float32" ? 1e-6 : 2e-3;
  for (const json& m : read_lines(scratch.dir + "/run/metrics.jsonl")) {
    const double kl = m.at("actor/kl_rollout_train"), length = m.at("data/response_tokens_mean");
    TANDEM_CHECK(std::abs(kl) <= bound, "rollout and training disagree: ", kl);
    TANDEM_CHECK(length == static_cast<double>(o.new_tokens), "responses of another length");
    TANDEM_CHECK(std::isfinite(m.at("actor/grad_norm").get<double>()), "gradient");
    if (m.at("step") == 1) continue;  // the warm-up
    if (m.at("actor/grad_norm") == 0) continue;  // all scores were alike: without the backward pass that is to be measured
    const double step = m.at("time/step_s"), generate = m.at("time/rollout_s");
    figures["step_s"].push_back(step);
    figures["generate_s"].push_back(generate);
    figures["train_s"].push_back(step - generate);
    figures["reference_s"].push_back(m.value("time/reference_s", 0.0));
    figures["tokens_per_s"].push_back(tokens / step);
  }
  if (figures.empty()) throw UserError("bench grpo_step", "no step had a spread of scores", "more --prompts or --gens");
  return report("grpo_step", o, {{"prompts", o.prompts}, {"gens", o.gens}, {"prompt_len", o.prompt_len}, {"new", o.new_tokens},
                                 {"beta", o.beta}}, figures);
}

}  // namespace tandem::bench
