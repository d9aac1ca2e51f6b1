// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/app.h"

#include <torch/version.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <system_error>
#include <thread>

#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/base/options.h"
#include "tandem/cli/host.h"
#include "tandem/config/config.h"
#include "tandem/device/fault.h"

namespace tandem::cli {
namespace {

struct CommandEntry {
  const char* name;
  const char* summary;
  const char* group;
  std::unique_ptr<Command> (*make)();  // null: of another program, see hand_over
};

const std::vector<CommandEntry>& entries() {
  static const std::vector<CommandEntry> all = {
      {"run", "Train a model by reinforcement learning. A recipe names the model, the prompts and the reward", "Training", run_command},
      {"sft", "Train a model on given answers (supervised fine-tuning)", "Training", sft_command},
      {"rollout", "Join a run, here or on another machine, and generate for it", "Training", rollout_command},
      {"config", "List every option of a recipe, or show a recipe with its defaults filled in", "Training", config_command},
      {"board", "Show a run as a web page", "Training", board_command},
      {"top", "Show a run in the terminal: what each rank does", "Training", top_command},
      {"eval", "Measure accuracy: answer the problems of a data set and score the answers", "Using a model", eval_command},
      {"generate", "Generate answers to prompts", "Using a model", generate_command},
      {"talk", "Talk with a model in the terminal", "Using a model", talk_command},
      {"logprobs", "Compute log-probabilities of given tokens", "Using a model", logprobs_command},
      {"tokenize", "Turn text into token ids", "Using a model", tokenize_command},
      {"detokenize", "Turn token ids into text", "Using a model", detokenize_command},
      {"chat", "Turn conversations into the text that a model reads", "Using a model", chat_command},
      {"grade", "Score answers by a rule", "Using a model", grade_command},
      {"plan", "Show what a change of layouts would move between ranks, without running it", "Planning", plan_command},
      {"doctor", "Check this machine: what it has, what is missing and how to get it", "This machine", doctor_command},
      {"bench", "Measure speed on this machine", "This machine", nullptr},
  };
  return all;
}

/// The command that was reached: the last one named.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().back();
  return *at;
}

std::string path_of(const CLI::App& app) {
  return app.get_parent() ? path_of(*app.get_parent()) + " " + app.get_name() : app.get_name();
}

// An option of a recipe as a flag, such as --lr, where the command sets it by --set.
void refuse_option_name(const CLI::App& app, const std::string& flag) {
  if (!app.get_option_no_throw("--set")) return;
  std::string part = flag.substr(std::min(flag.size(), flag.find_first_not_of('-')));
  std::replace(part.begin(), part.end(), '-', '_');
  std::string sets;
  for (const std::string& name : config::options_ending_in(part)) sets += (sets.empty() ? "--set " : " or --set ") + name + "=...";
  if (!sets.empty()) throw UserError(path_of(app), "unknown option " + flag, sets + "; see `" + path_of(app) + " --help`");
}

[[noreturn]] void refuse_extra(const CLI::App& app, const std::string& extra) {
  const std::string help = "see `" + path_of(app) + " --help`";
  std::vector<std::string> names;
  if (extra.size() > 1 && extra[0] == '-') {
    for (const CLI::Option* option : app.get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    const std::string name = extra.substr(0, extra.find('='));
    refuse_option_name(app, name);
    const std::string near = near_name(name, names);
    throw UserError(path_of(app), "unknown option " + name, (near.empty() ? "" : "the nearest is " + near + "; ") + help);
  }
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  if (names.empty()) throw UserError(path_of(app), "unexpected argument " + extra, help);
  throw UserError(path_of(app), "unknown command " + extra, "the nearest is " + nearest_name(extra, names) + "; " + help);
}

/// Says in the house's form what the parser did not like.
[[noreturn]] void refuse(const CLI::App& app, const CLI::ParseError& error) {
  const std::string help = "see `" + path_of(app) + " --help`", message = error.what();
  if (message.find("ubcommand") != std::string::npos) throw UserError(path_of(app), "names no command", help);
  const std::string unreadable = "Could not convert: ";
  if (message.starts_with(unreadable))
    throw UserError(path_of(app), message.substr(unreadable.size()) + " cannot be read", "expected a number; " + help);
  throw UserError(path_of(app), message, help);
}

/// False if the program is done: help was asked for and printed.
bool parse(CLI::App& app, int argc, char** argv) {
  std::optional<CLI::ParseError> failed;
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    app.exit(asked, std::cout, std::cerr);
    return false;
  } catch (const CLI::ParseError& error) {
    failed = error;
  }
  const CLI::App& command = innermost(app);
  // An option nobody knows comes first: what else is wrong may only follow from it.
  const std::vector<std::string> extras = app.remaining(true);
  const auto option = std::find_if(extras.begin(), extras.end(), [](const std::string& text) { return text.size() > 1 && text[0] == '-'; });
  if (option != extras.end()) refuse_extra(command, *option);
  if (!extras.empty()) refuse_extra(command, extras.front());
  if (failed) refuse(command, *failed);
  return true;
}

/// The rank that a launcher gave this process, if there is one.
std::optional<int> launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (const char* text = std::getenv(name)) return std::atoi(text);
  return std::nullopt;
}

std::string version_line() {
  return std::string("tandem " TANDEM_VERSION ", commit ") + build_commit() + ", libtorch " TORCH_VERSION;
}

void accept_extras(CLI::App& app) {
  app.allow_extras();  // parse() refuses them, with the nearest name
  for (CLI::App* inner : app.get_subcommands(nullptr)) accept_extras(*inner);
}

// Goes on as the program of benchmarks where one is asked for. It lies beside this one.
void hand_over(int argc, char** argv) {
  if (argc < 2 || std::string_view(argv[1]) != "bench") return;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe").replace_filename("tandem-bench");
  ::execv(program.c_str(), argv);
  throw UserError("tandem bench", program.string() + " cannot be started", "scripts/build release tandem-bench makes it");
}

void run(int argc, char** argv, std::unique_ptr<Command> (*bench)()) {
  CLI::App app("Tandem: reinforcement-learning post-training of language models.", "tandem");
  app.get_formatter()->column_width(36);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // commands inherit it
  app.set_version_flag("--version", version_line, "Print version, commit and libtorch of this program");
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  tandem run configs/quickstart.yaml                 train a small model on additions\n"
      "  tandem run configs/quickstart.yaml --resume        continue after an interruption\n"
      "  tandem board runs/quickstart                       watch it in a browser\n"
      "  tandem COMMAND --help                              options and examples of a command\n"
      "Commands write data as one JSON object per line, and logs to standard error. Exit codes: 0 done, 2 wrong input,\n"
      "3 another process or a device failed, 1 a bug of Tandem, 130 interrupted and saved.");
  std::vector<std::unique_ptr<Command>> commands;
  for (const CommandEntry& entry : entries()) {
    CLI::App* sub = app.add_subcommand(entry.name, entry.summary)->group(entry.group);
    const auto make = entry.make ? entry.make : bench;
    commands.push_back(make ? make() : nullptr);
    if (commands.back()) commands.back()->declare(*sub);
  }
  accept_extras(app);
  if (!parse(app, argc, argv)) return;
  for (size_t i = 0; i < commands.size(); ++i)
    if (commands[i] && app.got_subcommand(entries()[i].name) &&
        (commands[i]->is_for_every_rank() || launched_rank().value_or(0) == 0))
      commands[i]->run();
}

/// Lets a lower rank say the same first. The launcher ends this process as soon as that one has.
void give_way(int seconds) {
  std::signal(SIGTERM, SIG_DFL);
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
}

/// level: of the log. Who stops as it was told to has not failed.
int end(int code, const std::string& message, const char* level = "error") {
  if (launched_rank().value_or(0) > 0) give_way(3);
  std::cout.flush();
  std::string line = message;
  std::replace(line.begin(), line.end(), '\n', ' ');
  log::write(level, line);  // on standard error, and in the log of the run that it ends
  return code;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

int main(int argc, char** argv, std::unique_ptr<Command> (*bench)()) {
  try {
    command_line().assign(argv, argv + argc);
    ask_for_wheel();
    if (!bench) hand_over(argc, argv);
    run(argc, argv, bench);
    return 0;
  } catch (const UserError& e) {
    return end(2, e.what());
  } catch (const ReportedElsewhere& e) {
    if (launched_rank()) give_way(8);
    return e.exit_code;
  } catch (const PeerError& e) {
    return end(3, e.what());
  } catch (const Interrupted& e) {
    return end(130, e.what(), "info");
  } catch (const std::system_error& e) {
    return end(3, std::string("this machine: ") + e.what() + " (fewer ranks, threads or workers, or a higher limit on them)");
  } catch (const std::exception& e) {
    if (const std::optional<std::string> fault = device::fault_of(e)) return end(3, *fault);
    return end(1, "internal: " + first_line(e.what()) + " (this is a bug of Tandem; please report it)");
  }
}

}  // namespace tandem::cli
