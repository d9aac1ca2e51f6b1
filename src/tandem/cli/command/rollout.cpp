// SPDX-License-Identifier: Apache-2.0
// `tandem rollout`: this process generates for a run, and comes and goes as it likes.
#include <CLI/App.hpp>

#include "tandem/base/json_file.h"
#include "tandem/base/log.h"
#include "tandem/cli/command/command.h"
#include "tandem/cli/signals.h"
#include "tandem/worker/worker.h"

namespace tandem::cli {
namespace {

constexpr const char* kExamples =
    "The run says its address when workers may join: `tandem run RECIPE --rollout-workers N`, or workers.listen in its recipe. Recipe,\n"
    "tokenizer, prompts and weights come from there. Ctrl-C leaves: others go on with what is unfinished, from its last tokens.\n"
    "Examples:\n"
    "  tandem rollout --join 127.0.0.1:7070\n"
    "  tandem rollout --join 10.0.0.7:7070 --token token --host 10.0.0.8 --threads 8 --dtype bfloat16";

class Rollout : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("--join", request_.address, "Address of the run, as its log says it")->type_name("HOST:PORT")->required();
    app.add_option("--token", token_, "File with the token of the run: RUN_DIR/token; for addresses that other machines reach")
        ->type_name("FILE");
    worker::GeneratorOptions& generator = request_.generator;
    app.add_option("--host", generator.host, "Address of this machine at which the run fetches samples; loopback without it")
        ->type_name("HOST");
    app.add_option("--layout", generator.layout, "Layout of the replica, such as tp2, with a thread for each rank; without it one rank")
        ->type_name("LAYOUT");
    app.add_option("--dtype", generator.dtype, "Compute dtype, whatever the recipe has: float32 or bfloat16");
    app.add_option("--threads", generator.threads, "Compute threads; 0 takes every core")->check(CLI::NonNegativeNumber);
    app.add_option("--tokens-per-s", generator.tokens_per_s, "Draw at most so many tokens a second; 0: no bound")
        ->check(CLI::NonNegativeNumber);
    app.add_option("--patience", request_.patience_s, "Seconds for which a run may give no answer, as while it is started again")
        ->check(CLI::PositiveNumber);
    app.footer(kExamples);
  }

  void run() override {
    if (!token_.empty()) {
      request_.token = read_file(token_);
      while (!request_.token.empty() && request_.token.back() == '\n') request_.token.pop_back();
    }
    request_.stop = [&flag = stop_on_signals()] { return flag.load(); };
    const worker::WorkerSummary s = worker::generate_for_run(request_);
    log::info(s.was_stopped ? "left the run: " : "the run is over: ", s.groups, " groups, ", s.tokens, " tokens, ", s.versions, " versions",
              s.late > 0 ? join_text("; ", s.late, " groups came too late") : std::string());
  }

 private:
  worker::JoinRequest request_;
  std::string token_;
};

}  // namespace

std::unique_ptr<Command> rollout_command() { return std::make_unique<Rollout>(); }

}  // namespace tandem::cli
