// SPDX-License-Identifier: Apache-2.0
// `tandem run` and `tandem sft`: a recipe, what the command line changes in it, and a flag for signals.
#include <CLI/App.hpp>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "tandem/base/log.h"
#include "tandem/cli/command/command.h"
#include "tandem/cli/host.h"
#include "tandem/cli/recipe_arguments.h"
#include "tandem/cli/signals.h"
#include "tandem/runtime/run.h"

namespace tandem::cli {
namespace {

constexpr const char* kRunExamples =
    "`tandem config` lists every option for --set.\n"
    "Examples:\n"
    "  tandem run configs/quickstart.yaml\n"
    "  tandem run configs/quickstart.yaml --resume\n"
    "  tandem run configs/quickstart.yaml --run-dir runs/a --steps 20 --set train.lr=3e-4\n"
    "  tandem run configs/gsm8k_grpo.yaml --model Qwen/Qwen2.5-0.5B-Instruct --fit\n"
    "  tandem run configs/gsm8k_grpo.yaml --model DIR --staleness 2\n"
    "  tandem run configs/quickstart.yaml --ranks 2 --train-layout dp2 --threads 2\n"
    "  scripts/mpi -n 2 build/release/tandem run configs/quickstart.yaml";
constexpr const char* kSftExamples =
    "Trains on the prompts of data.train and their answers for --steps (supervised.steps) steps.\n"
    "Examples:\n"
    "  tandem sft configs/quickstart.yaml --run-dir runs/sft\n"
    "  tandem sft RECIPE --model DIR --steps 500 --set supervised.lr=2e-5";

// That can go back in its line.
bool is_terminal() {
  const char* kind = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && kind && std::string_view(kind) != "dumb";
}

class Train : public Command {
 public:
  explicit Train(RecipeArguments::Kind kind) : kind_(kind) {}

  void declare(CLI::App& app) override {
    recipe_.declare(app);
    app.add_flag("--resume", resume_, "Continue from the newest checkpoint in the run folder")->group("The run");
    app.add_flag("--overwrite", overwrite_, "Start again. The files of the earlier run move to RUN_DIR/aside_N")->group("The run");
    app.footer(kind_ == RecipeArguments::kReinforced ? kRunExamples : kSftExamples);
    if (kind_ != RecipeArguments::kReinforced) return;
    app.add_flag("--fit", fit_,
                 "First measure memory and speed. Then choose the sizes that you did not set: micro-batches, running sequences, KV cache")
        ->group("The run");
    app.add_option("--replay", replay_, "Train on the samples of another run instead of generating new ones")
        ->type_name("RUN_DIR")
        ->group("The run");
    app.add_option("--replay-decisions", replay_decisions_,
                   "Repeat a run that trained and generated at the same time. Its decisions.jsonl holds every decision that "
                   "depended on timing. If both runs have --parity, they compute the same bits")
        ->type_name("RUN_DIR")
        ->group("The run");
  }

  bool is_for_every_rank() const override { return true; }
  void run() override {
    runtime::RunRequest request;
    request.config = recipe_.load();
    request.resume = resume_;
    request.overwrite = overwrite_;
    request.replay = replay_;
    request.replay_decisions = replay_decisions_;
    if (fit_) request.fit_but = config::given_options(recipe_.path(), recipe_.settings());
    if (kind_ == RecipeArguments::kReinforced) request.hooks = hooks_of_recipe(request.config);
    log::show_live(is_terminal());
    request.host = runtime::Host::kProgram;
    request.stop = [&flag = stop_on_signals()] { return flag.load(); };
    kind_ == RecipeArguments::kReinforced ? runtime::run_rl(request) : runtime::run_supervised(request);
  }

 private:
  RecipeArguments::Kind kind_;
  RecipeArguments recipe_{RecipeArguments::kRequired, kind_};
  bool resume_ = false, overwrite_ = false, fit_ = false;
  std::string replay_, replay_decisions_;
};

}  // namespace

std::unique_ptr<Command> run_command() { return std::make_unique<Train>(RecipeArguments::kReinforced); }
std::unique_ptr<Command> sft_command() { return std::make_unique<Train>(RecipeArguments::kSupervised); }

}  // namespace tandem::cli
