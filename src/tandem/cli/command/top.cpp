// SPDX-License-Identifier: Apache-2.0
// `tandem top`: what the ranks of a run do, again and again, until the run or the person ends.
#include <CLI/App.hpp>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tandem/base/error.h"
#include "tandem/board/run_folder.h"
#include "tandem/cli/command/command.h"
#include "tandem/cli/signals.h"
#include "tandem/cli/top_text.h"

namespace tandem::cli {
namespace {

constexpr int64_t kWidth = 100;  // of what is no terminal
constexpr double kPause_s = 1;

int64_t width_of_terminal() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kWidth;
}

class Top : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("RUN_DIR", run_dir_, "Run folder, live or finished")->required()->type_name("DIR");
    app.add_flag("--once", once_, "Print it once; so it is where the output is no terminal");
    app.footer(
        "Of the last step: what each rank did, where it waited, how each worker does, how many groups are under way, and how far the\n"
        "trained ones lag.\n"
        "Until Ctrl-C, or the end of the run.\n"
        "Example:\n  tandem top runs/quickstart");
  }

  void run() override {
    if (!std::filesystem::exists(run_dir_ + "/config.yaml"))
      throw UserError(run_dir_, "holds no run: it has no config.yaml", "give the folder of a run, such as runs/quickstart");
    board::RunFolder folder(run_dir_);
    const std::atomic<bool>& stop = stop_on_signals();
    const bool again = !once_ && ::isatty(STDOUT_FILENO) == 1;
    for (bool goes_on = true; goes_on;) {
      const auto run = nlohmann::json::parse(folder.run());
      const auto metrics = nlohmann::json::parse(folder.metrics(std::max<int64_t>(0, run.at("num_lines").get<int64_t>() - 1)));
      const std::string text = top_text(run, metrics, nlohmann::json::parse(folder.timeline()), width_of_terminal());
      std::cout << (again ? "\x1b[H\x1b[2J" : "") << text << std::flush;
      goes_on = again && run.at("state") == "running";
      for (double waited_s = 0; goes_on && waited_s < kPause_s; waited_s += 0.1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        goes_on = !stop;
      }
    }
  }

 private:
  std::string run_dir_;
  bool once_ = false;
};

}  // namespace

std::unique_ptr<Command> top_command() { return std::make_unique<Top>(); }

}  // namespace tandem::cli
