// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a command of `tandem` is. A new one is a class in a file of this folder, one line below and one line in app.cpp.

#include <memory>

namespace CLI {
class App;
}

namespace tandem::cli {

/// Ownership  the parser writes into its members, so it outlives the parse.
/// Errors     run() throws the kinds of base/error.h; app.cpp catches.
class Command {
 public:
  virtual ~Command() = default;
  /// Adds options and, as the footer of the help, examples.
  virtual void declare(CLI::App& app) = 0;
  virtual void run() = 0;
  /// Whether every process runs it under mpirun; else it is work for the first. Asked after the parse.
  virtual bool is_for_every_rank() const { return false; }
};

std::unique_ptr<Command> run_command();
std::unique_ptr<Command> sft_command();
std::unique_ptr<Command> rollout_command();
std::unique_ptr<Command> eval_command();
std::unique_ptr<Command> generate_command();
std::unique_ptr<Command> talk_command();
std::unique_ptr<Command> logprobs_command();
std::unique_ptr<Command> tokenize_command();
std::unique_ptr<Command> detokenize_command();
std::unique_ptr<Command> chat_command();
std::unique_ptr<Command> grade_command();
std::unique_ptr<Command> config_command();
std::unique_ptr<Command> doctor_command();
std::unique_ptr<Command> board_command();
std::unique_ptr<Command> top_command();
std::unique_ptr<Command> plan_command();

}  // namespace tandem::cli
