// SPDX-License-Identifier: Apache-2.0
#include "stages/whole_run.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tandem/base/log.h"
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

std::string write_prompts(const std::string& path, const Shape& shape) {
  std::ofstream out(path);
  const std::vector<std::string> words = {"sum", "of", "two", "and", "ten", "plus", "six", "one"};
  for (int64_t i = 0; i < shape.prompts * shape.steps; ++i) {
    std::string text = "Q" + std::to_string(i) + ":";
    for (int64_t j = 0; static_cast<int64_t>(text.size()) < shape.prompt_len; ++j)
      text += " " + words[static_cast<size_t>((i * 7 + j * 3) % 8)];
    text.resize(static_cast<size_t>(shape.prompt_len), '.');
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

config::RunConfig config_of(const Computing& o, const Shape& shape, const Settings& settings, const std::string& dir) {
  const auto whole = [](int64_t n) { return std::to_string(n); };
  Settings all = {{"run.dir", dir + "/run"},
                  {"run.steps", whole(shape.steps)},
                  {"run.parity", o.parity ? "true" : "false"},
                  {"run.device", o.device},
                  {"run.kernels", o.kernels},
                  {"run.seed", whole(o.seed)},
                  {"model.path", with_tokenizer(o.model, dir + "/model")},
                  {"model.dtype", o.dtype},
                  {"data.train", write_prompts(dir + "/prompts.jsonl", shape)},
                  {"data.shuffle", "false"},
                  {"reward.rule", "regex"},
                  {"reward.pattern", kPattern},
                  {"rollout.max_new_tokens", whole(shape.new_tokens)},
                  {"rollout.ignore_eos", "true"},
                  {"rollout.max_running", whole(shape.prompts * shape.gens)},
                  {"schedule.groups_per_step", whole(shape.prompts)},
                  {"schedule.group_size", whole(shape.gens)},
                  {"checkpoint.every_steps", "0"},
                  {"parallel.threads", whole(o.threads)}};
  all.insert(all.end(), settings.begin(), settings.end());
  return config::load_config("", all);
}

}  // namespace

RunLines lines_of_run(const Computing& options, const Shape& shape, const Settings& settings, const runtime::Hooks& hooks) {
  const Scratch scratch;
  runtime::RunRequest request;
  request.config = config_of(options, shape, settings, scratch.dir);
  request.hooks = hooks;
  log::quiet(true);
  runtime::run_rl(request);
  log::quiet(false);
  return {read_lines(scratch.dir + "/run/metrics.jsonl"), read_lines(scratch.dir + "/run/timeline.jsonl"), request.config};
}

std::vector<json> metrics_of_run(const Computing& options, const Shape& shape, const Settings& settings, const runtime::Hooks& hooks) {
  return lines_of_run(options, shape, settings, hooks).metrics;
}

}  // namespace tandem::bench
