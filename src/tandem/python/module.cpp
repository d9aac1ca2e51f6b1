// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "tandem/base/error.h"
#include "tandem/cli/signals.h"
#include "tandem/device/process.h"
#include "tandem/python/hooks.h"
#include "tandem/runtime/run.h"

namespace tandem::python {
namespace {

namespace nb = nanobind;

nb::object evaluation(const std::optional<serve::EvalSummary>& summary) {
  if (!summary) return nb::none();
  nb::dict out;
  out["accuracy"] = summary->accuracy, out["mean_score"] = summary->mean_score, out["pass_at_k"] = summary->pass_at_k;
  return out;
}

using Settings = std::vector<std::pair<std::string, std::string>>;

nb::dict run(const std::string& recipe, const Settings& settings, bool resume, const std::string& replay, nb::tuple hooks) {
  std::vector<config::Setting> given;
  for (const auto& [name, value] : settings) given.push_back({name, value, "tandem.run"});
  runtime::RunRequest request;
  request.config = config::load_config(recipe, given);
  request.resume = resume;
  request.replay = replay;
  request.hooks = hooks_of(hooks[0], hooks[1], hooks[2]);
  request.stop = [&flag = cli::stop_on_signals()] { return flag.load(); };
  device::tune_allocator();
  runtime::RunSummary summary;
  {
    nb::gil_scoped_release unlocked;
    summary = runtime::run_rl(request);
  }
  nb::dict out;
  out["dir"] = request.config.run.dir;
  out["steps"] = summary.steps, out["seconds"] = summary.seconds, out["tokens"] = summary.tokens;
  out["before"] = evaluation(summary.before), out["after"] = evaluation(summary.after);
  return out;
}

}  // namespace

// NOLINTNEXTLINE: the macro defines the module's entry.
NB_MODULE(_tandem, module) {
  nb::exception<UserError>(module, "UserError", PyExc_ValueError);
  nb::exception<PeerError>(module, "PeerError", PyExc_RuntimeError);
  nb::exception<Interrupted>(module, "Interrupted", PyExc_KeyboardInterrupt);
  module.def("run", &run, nb::arg("recipe"), nb::arg("settings"), nb::arg("resume"), nb::arg("replay"), nb::arg("hooks"));
}

}  // namespace tandem::python
