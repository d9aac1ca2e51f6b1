// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <csignal>

#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/cli/app.h"
#include "tandem/cli/host.h"
#include "tandem/cli/signals.h"
#include "tandem/device/process.h"
#include "tandem/python/hooks.h"
#include "tandem/python/own_loop.h"
#include "tandem/runtime/run.h"

namespace tandem::python {
namespace {

namespace nb = nanobind;

nb::dict numbers_of(const serve::EvalSummary& summary) {
  nb::dict out;
  out["accuracy"] = summary.accuracy, out["mean_score"] = summary.mean_score, out["pass_at_k"] = summary.pass_at_k;
  return out;
}

nb::object evaluation(const std::optional<serve::EvalSummary>& summary) {
  if (!summary) return nb::none();
  nb::dict out = numbers_of(*summary), sets;
  for (const serve::NamedSummary& set : summary->sets) sets[set.name.c_str()] = numbers_of(set.summary);
  out["sets"] = sets;
  return out;
}

/// While it lives, SIGINT, SIGTERM and SIGHUP ask the run to stop; then they are the host's again, whichever thread it was.
class Signals {
 public:
  Signals() {
    for (size_t i = 0; i < kNumbers.size(); ++i) ::sigaction(kNumbers[i], nullptr, &before_[i]);
  }
  ~Signals() {
    for (size_t i = 0; i < kNumbers.size(); ++i) ::sigaction(kNumbers[i], &before_[i], nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  static constexpr std::array kNumbers = {SIGINT, SIGTERM, SIGHUP, SIGXFSZ};
  struct sigaction before_[kNumbers.size()];
};

// The last word of a run stands in its log.
runtime::RunSummary run_to_end(const runtime::RunRequest& request) {
  try {
    return runtime::run_rl(request);
  } catch (const std::exception& e) {
    log::write(dynamic_cast<const Interrupted*>(&e) ? "info" : "error", e.what());
    log::stop_file();
    throw;
  }
}

using Settings = std::vector<std::pair<std::string, std::string>>;
using How = std::tuple<bool, bool, std::string, std::string>;  // resume, overwrite, replay, replay_decisions

nb::dict run(const std::string& recipe, const Settings& settings, const How& how, nb::tuple hooks) {
  std::vector<config::Setting> given;
  for (const auto& [name, value] : settings) given.push_back({name, value, "tandem.run"});
  runtime::RunRequest request;
  request.config = config::load_config(recipe, given);
  std::tie(request.resume, request.overwrite, request.replay, request.replay_decisions) = how;
  request.hooks = hooks_of_recipe(request.config, hooks[3], hooks_of(hooks[0], hooks[1], hooks[2]));
  const Signals signals;
  request.stop = [&flag = cli::stop_on_signals()] { return flag.load(); };
  device::tune_allocator();
  runtime::RunSummary summary;
  {
    nb::gil_scoped_release unlocked;
    summary = run_to_end(request);
  }
  nb::dict out;
  out["dir"] = request.config.run.dir;
  out["steps"] = summary.steps, out["seconds"] = summary.seconds, out["tokens"] = summary.tokens;
  out["before"] = evaluation(summary.before), out["after"] = evaluation(summary.after);
  return out;
}

// The program. `load` is that of hooks_of_recipe.
int program(std::vector<std::string> words, nb::object load) {
  cli::host_hooks() = [&load](const config::RunConfig& config) {
    const nb::gil_scoped_acquire lock;
    return hooks_of_recipe(config, load);
  };
  device::name_program(words.front());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  device::tune_allocator();
  const nb::gil_scoped_release unlocked;
  return cli::main(static_cast<int>(words.size()), argv.data());
}

}  // namespace

// NOLINTNEXTLINE: the macro defines the module's entry.
NB_MODULE(_tandem, module) {
  cli::ask_for_wheel();
  nb::exception<UserError>(module, "UserError", PyExc_ValueError);
  nb::exception<PeerError>(module, "PeerError", PyExc_RuntimeError);
  nb::exception<Interrupted>(module, "Interrupted", PyExc_KeyboardInterrupt);
  module.def("run", &run, nb::arg("recipe"), nb::arg("settings"), nb::arg("how"), nb::arg("hooks"));
  module.def("main", &program, nb::arg("words"), nb::arg("load"));
  declare_session(module);
}

}  // namespace tandem::python
