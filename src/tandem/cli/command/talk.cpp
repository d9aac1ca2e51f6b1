// SPDX-License-Identifier: Apache-2.0
// `tandem talk`: a conversation in the terminal, or line by line through a pipe.
#include <unistd.h>

#include <CLI/App.hpp>
#include <iostream>

#include "tandem/base/error.h"
#include "tandem/base/strings.h"
#include "tandem/cli/arguments.h"
#include "tandem/cli/command/command.h"
#include "tandem/cli/signals.h"
#include "tandem/hub/fetch.h"
#include "tandem/serve/talk.h"

namespace tandem::cli {
namespace {

class Talk : public Command {
 public:
  void declare(CLI::App& app) override {
    serve::InferenceOptions& inference = options_.inference;
    add_model(app, inference);
    add_checked(app, "--seed", &inference.seed, "Seed of sampling", at_least(0))->group("Computing");
    add_checked(app, "--kv-cache-mib", &inference.engine.kv_cache_mib, "Most memory of the KV cache, which bounds the context", at_least(1))
        ->group("Computing");
    app.add_option("--chat-template", options_.chat_template, "Template of messages; default that of the model")->type_name("FILE");
    app.add_option("--system", options_.system, "Message of the system before all others")->type_name("TEXT");
    add_described(app, options_.generate.sampling, "Sampling");
    add_repeated(app, "--stop", options_.generate.stop, "Text that ends an answer and is cut off; may be repeated")->group("Sampling");
    app.footer(
        "Each line is a message; the answer appears as it is generated, and earlier messages count. Ctrl-C ends an answer, Ctrl-D the\n"
        "talk. Where standard input is no terminal, each line gets one line of answer, whose line breaks are written as \\n.\n"
        "Examples:\n"
        "  tandem talk --model DIR --temperature 0.7\n"
        "  printf 'Who are you?\\nSince when?\\n' | tandem talk --model DIR --temperature 0");
  }

  void run() override {
    options_.inference.model = hub::local_path(options_.inference.model, hub::Kind::kModel, "--model");
    serve::Talk talk(options_);
    const bool in_terminal = ::isatty(STDIN_FILENO) == 1;
    std::atomic<bool> never{false};  // elsewhere Ctrl-C ends the program, as it does others
    std::atomic<bool>& interrupted = in_terminal ? interrupts() : never;
    for (std::string line; next_line(line, in_terminal);) {
      if (trimmed(line).empty()) continue;
      interrupted = false;
      try {
        const auto show = [&](std::string_view part) {
          const std::string text = terminal_text(part);
          write(in_terminal ? text : replaced(text, "\n", "\\n"));
        };
        const serve::Talk::Answer answer = talk.say(line, show, [&] { return interrupted.exchange(false); });
        write("\n");
        if (answer.num_forgotten > 0) std::cerr << "(the context is full: " << answer.num_forgotten << " messages are forgotten)\n";
        if (answer.is_cut && in_terminal) std::cerr << "(the answer has no more room; --max-new-tokens sets it)\n";
      } catch (const UserError& e) {
        if (!in_terminal) throw;
        std::cerr << "tandem: error: " << terminal_text(e.what()) << "\n";
      }
    }
    if (in_terminal) std::cerr << "\n";
  }

 private:
  static bool next_line(std::string& line, bool in_terminal) {
    if (in_terminal) std::cerr << "> " << std::flush;
    return static_cast<bool>(std::getline(std::cin, line));
  }
  static void write(const std::string& text) {
    std::cout << text << std::flush;
    if (!std::cout) throw PeerError("stdout: cannot be written");
  }

  serve::TalkOptions options_;
};

}  // namespace

std::unique_ptr<Command> talk_command() { return std::make_unique<Talk>(); }

}  // namespace tandem::cli
