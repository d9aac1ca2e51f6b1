// SPDX-License-Identifier: Apache-2.0
// `tandem eval`: answers a data set and grades the answers.
#include <CLI/App.hpp>

#include "tandem/cli/arguments.h"
#include "tandem/cli/command.h"
#include "tandem/cli/json_lines.h"

namespace tandem::cli {

using nlohmann::ordered_json;

namespace {

class Eval : public Command {
 public:
  Eval() { request_.generate.sampling.temperature = 0; }

  void declare(CLI::App& app) override {
    add_inference(app, request_.inference);
    const std::string problems = "Problems";
    data::Options& data = request_.data;
    app.add_option("--data", data.eval, "Problems with answers: a .jsonl or .json file, or `synthetic`")
        ->required()
        ->type_name("FILE")
        ->group(problems);
    const auto text = [&](const char* name, std::string& value, const char* help) {
      add_checked(app, name, &value, help)->group(problems);
    };
    text("--prompt-column", data.prompt_column, "Field of a record that holds the question");
    text("--answer-column", data.answer_column, "Field of a record that holds the right answer");
    text("--prompt-template", data.prompt_template, "Text the model sees; {prompt} is the question");
    text("--answer-after", data.answer_after, "The answer is what follows the last of these texts, such as ####");
    add_checked(app, "--max-problems", &data.eval_max_rows, "Problems to use from the start of the file; 0 is all", at_least(0))
        ->group(problems);
    app.add_option("--reward", request_.reward.rule, "Rule that grades an answer, such as gsm8k(method=flexible)")
        ->required()
        ->type_name("RULE");
    add_checked(app, "--right-at", &request_.right_at, "Score from which an answer counts as right");
    add_checked(app, "--n", &request_.generate.n, "Answers per problem; needs a --temperature above 0 to differ", at_least(1))
        ->group("Sampling");
    add_described(app, request_.generate.sampling, "Sampling");
    add_repeated(app, "--stop", request_.generate.stop, "Text that ends an answer and is cut off; may be repeated")->group("Sampling");
    app.footer(
        "Writes a line per answer and at last {\"accuracy\":, \"pass_at_k\":, \"num_problems\":, \"tokens_per_s\":}.\n"
        "Examples:\n"
        "  tandem eval --model runs/quickstart/checkpoint/latest/hf --data synthetic --reward number --max-new-tokens 6\n"
        "  tandem eval --model DIR --data test.jsonl --reward gsm8k --answer-after '####' --max-problems 100\n"
        "  tandem eval --model DIR --data math500.json --prompt-column problem --reward math --n 4 --temperature 0.7");
  }

  void run() override {
    data::Options& data = request_.data;
    if (data.eval == "synthetic" && data.eval_max_rows > 0) data.synthetic_eval_rows = data.eval_max_rows;
    const runtime::EvalSummary summary = runtime::evaluate(request_, write);
    write_line(std::cout, {{"accuracy", summary.accuracy},
                           {"pass_at_k", summary.pass_at_k},
                           {"num_problems", summary.num_problems},
                           {"tokens_per_s", summary.tokens_per_s}});
  }

 private:
  static void write(const data::Group& group) {
    for (size_t i = 0; i < group.samples.size(); ++i) {
      const data::Sample& sample = group.samples[i];
      ordered_json parts = ordered_json::object();
      for (const auto& [name, value] : sample.parts) parts[name] = value;
      write_line(std::cout, {{"problem", group.prompt.row},
                             {"answer_index", i},
                             {"prompt", group.prompt.text},
                             {"response", sample.text},
                             {"gold", group.prompt.answer},
                             {"score", sample.score},
                             {"parts", std::move(parts)},
                             {"response_tokens", sample.ids.size()},
                             {"finish_reason", sample.finish == data::FinishReason::kStop ? "stop" : "length"}});
    }
  }

  runtime::EvalRequest request_;
};

}  // namespace

std::unique_ptr<Command> eval_command() { return std::make_unique<Eval>(); }

}  // namespace tandem::cli
