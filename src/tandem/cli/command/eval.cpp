// SPDX-License-Identifier: Apache-2.0
// `tandem eval`: answers a data set and grades the answers.
#include <CLI/App.hpp>
#include <algorithm>

#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/cli/arguments.h"
#include "tandem/cli/command/command.h"
#include "tandem/cli/json_lines.h"
#include "tandem/cli/recipe_arguments.h"
#include "tandem/hub/recipe.h"
#include "tandem/reward/rule.h"

namespace tandem::cli {

using nlohmann::ordered_json;

namespace {

class Eval : public Command {
 public:
  Eval() { request_.generate.sampling.temperature = 0; }

  void declare(CLI::App& app) override {
    declare_recipe(app);
    add_inference(app, request_.inference);
    const std::string problems = "Problems";
    data::Options& data = request_.data;
    add_repeated(app, "--data", data.eval,
                 "Problems with answers: a .jsonl, .json or .parquet file, `word_problems` or `synthetic`; several sets as NAME=FILE each")
        ->type_name("FILE")
        ->group(problems);
    const auto text = [&](const char* name, std::string& value, const char* help) {
      add_checked(app, name, &value, help)->group(problems);
    };
    text("--prompt-column", data.prompt_column, "Field of a record that holds the question, or messages; dots go into it");
    text("--answer-column", data.answer_column, "Field that holds the right answer, such as reward_model.ground_truth");
    text("--prompt-template", data.prompt_template, "Text the model sees; {prompt} is the question");
    text("--answer-after", data.answer_after, "The answer is what follows the last of these texts, such as ####");
    text("--chat-template", data.chat_template, "Template of messages; default that of the model");
    app.add_flag("--as-chat", data.as_chat, "A question that is a text becomes the message of a user")->group(problems);
    add_checked(app, "--max-problems", &data.eval_max_rows, "Problems to use from the start of the file; 0 is all", at_least(0))
        ->group(problems);
    const std::string rules = "Rule that grades an answer, such as gsm8k(method=flexible); one of " + reward::listed_rules();
    reward_ = app.add_option("--reward", request_.reward.rule, rules)->type_name("RULE");
    add_checked(app, "--right-at", &request_.right_at, "Score from which an answer counts as right");
    add_checked(app, "--n", &request_.generate.n, "Answers per problem; needs a --temperature above 0 to differ", at_least(1))
        ->group("Sampling");
    add_described(app, request_.generate.sampling, "Sampling");
    add_repeated(app, "--stop", request_.generate.stop, "Text that ends an answer and is cut off; may be repeated")->group("Sampling");
    app.footer(
        "Writes a line per answer and at last {\"accuracy\":, \"mean_score\":, \"pass_at_k\":, \"num_problems\":, \"tokens_per_s\":}.\n"
        "Several --data NAME=FILE: the numbers are over all of them, and under \"sets\" by name.\n"
        "Examples:\n"
        "  tandem eval --config configs/quickstart.yaml --model runs/quickstart/checkpoint/latest/hf\n"
        "  tandem eval --config runs/X/config.yaml --model DIR --n 4 --temperature 0.7 --max-problems 100\n"
        "  tandem eval --model DIR --data test.jsonl --reward gsm8k --answer-after '####' --max-problems 100\n"
        "  tandem eval --model DIR --data math500.json --prompt-column problem --reward math --n 4 --temperature 0.7\n"
        "  tandem eval --model DIR --data rows.jsonl --reward 'python(python=reward.py:score)' --max-new-tokens 64");
  }

  void run() override {
    data::Options& data = request_.data;
    if (data.eval.empty())
      throw UserError("--data", "is missing: it names the problems to answer", "a file, `word_problems`, or a --config that has data.eval");
    if (config_.empty() && !set_.empty())
      throw UserError("--set", "there is no recipe to set it in",
                      "--config FILE beside it, or --reward with the rule's options, such as 'python(python=FILE.py:score)'");
    if (config_.empty() && reward_->count() == 0)
      throw UserError("--reward", "no rule is named", "a rule, such as number or 'python(python=FILE.py:score)', or a --config");
    if (reward_->count() > 0) request_.reward.rules.clear(), request_.reward.by_source.clear();  // one rule instead of the recipe's
    if (request_.generate.n > 1 && request_.generate.sampling.temperature == 0)
      log::warning("--n: the ", request_.generate.n, " answers to a problem are alike at temperature 0; --temperature makes them differ");
    fetch();
    several_ = data.eval.size() > 1;
    const auto is_made_here = [](const data::EvalSet& set) { return data::is_generated(set.path); };
    if (data.eval_max_rows > 0 && std::ranges::any_of(data::eval_sets(data), is_made_here))
      data.synthetic_eval_rows = config_.empty() ? data.eval_max_rows : std::min(data.eval_max_rows, data.synthetic_eval_rows);
    const serve::EvalSummary summary = serve::evaluate(request_, [this](const data::Group& group) { write(group); });
    ordered_json last = numbers_of(summary);
    last["tokens_per_s"] = summary.tokens_per_s;
    for (const serve::NamedSummary& set : summary.sets) last["sets"][set.name] = numbers_of(set.summary);
    write_line(std::cout, last);
  }

 private:
  // The recipe comes first of all options, so that those beside it refine it.
  void declare_recipe(CLI::App& app) {
    const std::string group = "Recipe";
    add_repeated(app, "--set", set_, "Sets one option of the recipe; may be repeated. The other options of this command refine it")
        ->type_name("a.b=c")
        ->group(group);
    app.add_option_function<std::string>(
           "--config", [this](const std::string& path) { adopt(path); },
           "Takes problems, rule, sampling and engine from a recipe, as its own evaluation does; other options refine it")
        ->type_name("FILE")
        ->group(group);
  }

  void adopt(const std::string& path) {
    const config::RunConfig config = config::load_config(config_ = path, settings_of(set_));
    serve::InferenceOptions& inference = request_.inference;
    inference.device = config.run.device;
    inference.kernels = config.run.kernels;
    inference.dtype = config.model.lora.rank > 0 ? "float32" : config.model.dtype;  // hf/ has merged matrices, which bfloat16 would round
    inference.threads = config.parallel.threads;
    inference.parity = config.run.parity;
    inference.seed = config.run.seed;
    inference.engine = config.rollout.engine;
    request_.data = config.data;
    request_.reward = config.reward;
    request_.right_at = config.eval.right_at;
    request_.generate = {config.eval.sampling, config.eval.n, config.rollout.stop};
    request_.episode = config.episode;
  }

  // What is named as on a hub.
  void fetch() {
    config::RunConfig named;
    named.model.path = request_.inference.model;
    named.data.eval = request_.data.eval;
    named.reward.model = request_.reward.model;
    const config::RunConfig here = hub::with_texts(named, hub::local_paths(named, {}, {}));
    request_.inference.model = here.model.path;
    request_.data.eval = here.data.eval;
    request_.reward.model = here.reward.model;
  }

  static ordered_json numbers_of(const serve::EvalSummary& s) {
    return {{"accuracy", s.accuracy}, {"mean_score", s.mean_score}, {"pass_at_k", s.pass_at_k}, {"num_problems", s.num_problems}};
  }

  void write(const data::Group& group) const {
    for (size_t i = 0; i < group.samples.size(); ++i) {
      const data::Sample& sample = group.samples[i];
      ordered_json parts = ordered_json::object();
      for (const auto& [name, value] : sample.parts) parts[name] = value;
      ordered_json row = {{"problem", group.prompt.row},
                          {"answer_index", i},
                          {"prompt", group.prompt.text},
                          {"response", sample.text},
                          {"gold", group.prompt.answer},
                          {"score", sample.score},
                          {"parts", std::move(parts)},
                          {"response_tokens", sample.ids.size()},
                          {"finish_reason", sample.finish == data::FinishReason::kStop ? "stop" : "length"}};
      if (several_) row["data_source"] = group.prompt.data_source;
      write_line(std::cout, row);
    }
  }

  serve::EvalRequest request_;
  std::string config_;
  std::vector<std::string> set_;
  bool several_ = false;                 ///< sets; rows then say which one they are of
  const CLI::Option* reward_ = nullptr;  ///< of the parser, which outlives run()
};

}  // namespace

std::unique_ptr<Command> eval_command() { return std::make_unique<Eval>(); }

}  // namespace tandem::cli
