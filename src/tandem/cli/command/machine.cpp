// SPDX-License-Identifier: Apache-2.0
// `tandem config`, `doctor` and `board`: what can be set, what the machine has, what a run did.
#include <CLI/App.hpp>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tandem/base/error.h"
#include "tandem/board/server.h"
#include "tandem/cli/arguments.h"
#include "tandem/cli/command/command.h"
#include "tandem/cli/recipe_arguments.h"
#include "tandem/cli/signals.h"
#include "tandem/config/layouts.h"
#include "tandem/device/process.h"
#include "tandem/doctor/machine_report.h"
#include "tandem/doctor/proof.h"
#include "tandem/fit/reckon.h"
#include "tandem/planner/interpret.h"
#include "tandem/reward/code_rule.h"

namespace tandem::cli {
namespace {

class Config : public Command {
 public:
  void declare(CLI::App& app) override {
    recipe_.declare(app);
    app.add_flag("--check", check_,
                 "Validate options and layouts; prints nothing if all is well. `tandem run` looks at files, functions and models");
    app.add_flag("--schedule", schedule_, "Print what runs when: two steps as a timeline, and what each stage waits for");
    app.add_flag("--memory", memory_,
                 "Print what each stage will hold on a device, by the planner: from the recipe and the config.json in model.path alone. "
                 "What is above the budgets of `memory` is an error");
    app.footer(
        "Without CONFIG: every option with its default and meaning. With it: the recipe with every option written out.\n"
        "Examples:\n"
        "  tandem config\n"
        "  tandem config configs/quickstart.yaml --set train.lr=3e-4\n"
        "  tandem config configs/gsm8k_grpo.yaml --check\n"
        "  tandem config configs/quickstart.yaml --ranks 2 --set parallel.placement=split --staleness 1 --schedule\n"
        "  tandem config configs/gsm8k_grpo.yaml --model DIR --set data.max_prompt_tokens=512 --memory");
  }

  void run() override {
    const bool names_a_recipe = !recipe_.path().empty() || !recipe_.settings().empty();
    if (!names_a_recipe && !check_ && !schedule_ && !memory_) {
      std::cout << config::option_reference();
      return;
    }
    const config::RunConfig config = recipe_.load();
    if (schedule_) std::cout << timeline_of(config);
    if (memory_) print_memory(config);
    if (schedule_ || memory_) return;
    if (check_) (void)config::layouts_of(config, config::planned_ranks(config));
    else std::cout << config::to_yaml(config);
  }

 private:
  static std::string timeline_of(const config::RunConfig& config) {
    const config::Layouts layouts = config::layouts_of(config, config::planned_ranks(config));
    return planner::timeline(config::schedule_of(config, layouts, false), 2);
  }

  static void print_memory(const config::RunConfig& config) {
    std::error_code failed;
    if (!std::filesystem::is_directory(config.model.path, failed))
      throw UserError("model.path", "`" + config.model.path + "` is no folder here", "--model DIR, with a config.json in it");
    const fit::Reckoned reckoned = fit::reckoned(config, model::read_config(config.model.path));
    std::cout << fit::to_text(reckoned, config) << std::flush;
    fit::check_budgets(reckoned, config);
  }

  RecipeArguments recipe_{RecipeArguments::kOptional, RecipeArguments::kPrinted};
  bool check_ = false, schedule_ = false, memory_ = false;
};

class Doctor : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_flag("--json", json_, "One JSON object");
    add_checked(app, "--device", &device_, "Prove that this device computes what it should",
                one_of(device::device_names()));
    add_kernels(app, kernels_);
    app.add_flag("--full", full_, "With --device: kernels at the sizes of models, too, and all other devices of the kind");
    add_out(app, out_, "File for the JSON object of --device as well");
    app.footer(
        "With --device: each kernel against its formula in double, forward and backward; the device's memory; groups of devices; a\n"
        "small model of each family against the processor; rates. One line for each check, as it ends. Exit code 1: one is wrong.\n"
        "Examples:\n  tandem doctor\n  tandem doctor --json\n  tandem doctor --device cuda --full --out proof.json");
  }
  void run() override {
    if (!device_.empty()) return prove();
    for (const auto& [flag, given] : {std::pair("--kernels", kernels_ != "auto"), {"--out", !out_.empty()}, {"--full", full_}})
      if (given) throw UserError("tandem doctor", std::string(flag) + " without a device to prove", "with --device");
    const nlohmann::json report = doctor::machine_report(reward::code_guard_text());
    std::cout << (json_ ? report.dump(2) + "\n" : doctor::machine_text(report));
  }

 private:
  void prove() {
    using doctor::Thoroughness;
    const at::Device device = doctor::device_to_prove(device_);
    if (!json_) std::cout << doctor::heading(kernels_, device) << std::flush;
    const doctor::Proof proof = doctor::prove(kernels_, device, full_ ? Thoroughness::kFull : Thoroughness::kAll,
                                              [&](const doctor::Check& check) {
                                                if (!json_) std::cout << doctor::line_of(check) << std::flush;
                                              });
    std::cout << (json_ ? to_json(proof).dump(2) + "\n" : doctor::last_line(proof)) << std::flush;
    write_out(out_, to_json(proof).dump(2) + "\n");
    if (const std::string fault = proof.fault(); !fault.empty()) {
      std::cerr << "tandem: error: " << proof.device << ": " << fault << std::endl;
      throw ReportedElsewhere(1, fault);  // no bug of the program: the page has said what is wrong
    }
  }

  bool json_ = false, full_ = false;
  std::string device_, kernels_ = "auto", out_;
};

class Board : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("RUN_DIR", run_dir_, "Run folder, live or finished")->required()->type_name("DIR");
    add_checked(app, "--port", &port_, "Port on 127.0.0.1; 0 takes a free one", between(0, 65535));
    app.footer("Serves until Ctrl-C.\nExample:\n  tandem board runs/quickstart");
  }
  void run() override {
    check_is_run();
    const std::atomic<bool>& stop = stop_on_signals();
    board::Server server(run_dir_, static_cast<int>(port_));
    std::cout << server.url() << std::endl;
    server.run(stop);
  }

 private:
  // A folder above those of runs is easily meant for one of them.
  void check_is_run() const {
    namespace fs = std::filesystem;
    std::error_code failed;
    if (!fs::is_directory(run_dir_, failed) || fs::exists(run_dir_ + "/config.yaml", failed)) return;
    std::string below;
    for (const fs::directory_entry& entry : fs::directory_iterator(run_dir_, failed))
      if (fs::exists(entry.path() / "config.yaml", failed)) below += (below.empty() ? "" : ", ") + entry.path().string();
    throw UserError(run_dir_, "is not the folder of a run: it has no config.yaml",
                    below.empty() ? "give the folder of a run, such as runs/quickstart" : "give one of " + below);
  }

  std::string run_dir_;
  int64_t port_ = 0;
};

}  // namespace

std::unique_ptr<Command> config_command() { return std::make_unique<Config>(); }
std::unique_ptr<Command> doctor_command() { return std::make_unique<Doctor>(); }
std::unique_ptr<Command> board_command() { return std::make_unique<Board>(); }

}  // namespace tandem::cli
