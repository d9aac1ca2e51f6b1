// SPDX-License-Identifier: Apache-2.0
#include "tandem/python/own_loop.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <csignal>
#include <exception>
#include <nlohmann/json.hpp>

#include "tandem/base/input/exact_json.h"
#include "tandem/device/process.h"
#include "tandem/hub/fetch.h"
#include "tandem/python/hooks.h"
#include "tandem/python/tensors.h"
#include "tandem/python/session/session.h"

namespace tandem::python {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

std::vector<config::Setting> settings_of(const Settings& given) {
  std::vector<config::Setting> settings;
  for (const auto& [name, value] : given) settings.push_back({name, value, "settings"});
  return settings;
}

session::Row row_of(const nb::handle& given) {
  const auto tuple = nb::cast<nb::tuple>(given);
  return {numbers<int32_t, int64_t>(tuple[0]), numbers<int32_t, int64_t>(tuple[1]), numbers<float>(tuple[2]), numbers<float>(tuple[3]),
          numbers<float>(tuple[4]), numbers<float>(tuple[5]), numbers<uint8_t, bool>(tuple[6]), nb::cast<std::optional<int64_t>>(tuple[7])};
}

std::vector<session::Row> rows_of(const nb::list& given) {
  std::vector<session::Row> rows;
  for (const nb::handle& row : given) rows.push_back(row_of(row));
  return rows;
}

nb::dict report_of(const train::StepReport& report) {
  nb::dict out;
  out["loss"] = report.loss, out["entropy"] = report.entropy, out["kl_ref"] = report.kl_ref, out["kl_old"] = report.kl_old;
  out["clip_fraction"] = report.clip_fraction, out["ratio_max"] = report.ratio_max, out["tokens"] = report.trained_tokens;
  return out;
}

class OwnLoop {
 public:
  explicit OwnLoop(const Settings& given) : settings_(settings_of(given)) {
    config::RunConfig config = config::load_config("", settings_);
    device::tune_allocator();
    waited([&] {
      const StopRequested stop = [this] { return is_interrupted(); };
      config.model.path = hub::local_path(config.model.path, hub::Kind::kModel, "model", {config.run.fetch_timeout_s, stop});
      session_ = std::make_unique<session::Session>(config, stop);
    });
  }
  ~OwnLoop() {
    const nb::gil_scoped_release unlocked;
    session_.reset();
  }

  nb::object encode_text(const std::string& text) const { return copied<int64_t>(session_->encoded(text)); }
  nb::object encode_messages(const std::string& json) const {
    const auto row = parse_exact(json).value;
    return copied<int64_t>(session_->encoded(text::Conversation::from_json(row, "the messages")));
  }

  nb::list sample(const nb::list& prompts, int64_t n, const std::vector<std::string>& stop, const Settings& settings) {
    std::vector<data::Prompt> asked(nb::len(prompts));
    for (size_t i = 0; i < asked.size(); ++i) asked[i].ids = numbers<int32_t, int64_t>(prompts[i]);
    serve::GenerateOptions how{sampling(settings), n, stop};
    if (!names_length(settings_) && !names_length(settings_of(settings))) fit_length(asked, how.sampling);
    std::vector<data::Group> groups;
    waited([&] { groups = session_->sample(std::move(asked), how); });
    nb::list out;
    for (const data::Group& group : groups) {
      nb::list answers;
      for (const data::Sample& s : group.samples)
        answers.append(nb::make_tuple(copied<int64_t>(s.ids), copied<float>(s.logprobs), s.text,
                                      s.finish == data::FinishReason::kStop ? "stop" : "length", value(group.version)));
      out.append(answers);
    }
    return out;
  }

  nb::list logprobs(const nb::list& given, const Settings& settings) {
    const std::vector<session::Row> rows = rows_of(given);
    const double temperature = sampling(settings).temperature;
    std::vector<std::vector<float>> all;
    waited([&] { all = session_->logprobs(rows, temperature); });
    nb::list out;
    for (const std::vector<float>& values : all) out.append(copied<float>(values));
    return out;
  }

  nb::dict forward_backward(const nb::list& given, nb::object loss, const Settings& settings) {
    const std::vector<session::Row> rows = rows_of(given);
    const double temperature = sampling(settings).temperature;
    const runtime::Hooks hooks = hooks_of(nb::none(), nb::none(), std::move(loss));
    train::StepReport report;
    waited([&] { report = session_->forward_backward(rows, temperature, hooks.loss); });
    return report_of(report);
  }

  nb::dict step(std::optional<double> lr) {
    train::StepReport report;
    waited([&] { report = session_->step(lr); });
    nb::dict out = report_of(report);
    out["grad_norm"] = report.grad_norm, out["lr"] = report.lr, out["skipped"] = report.skipped;
    return out;
  }

  int64_t num_steps() const { return session_->num_steps(); }
  void save() {
    waited([&] { session_->save(); });
  }
  int64_t load() {
    int64_t steps = 0;
    waited([&] { steps = session_->load(); });
    return steps;
  }

 private:
  // Lets others have the interpreter. What a signal's handler raised meanwhile is raised at the end of the call. Errors: as `call`.
  template <class Call>
  void waited(const Call& call) {
    raised_.reset();
    std::exception_ptr fault;
    {
      const nb::gil_scoped_release unlocked;
      try {
        call();
      } catch (...) {
        fault = std::current_exception();
      }
    }
    if (raised_) {
      PyOS_setsig(SIGINT, handler_);
      nb::python_error error = std::move(*raised_);
      raised_.reset();
      throw error;
    }
    if (fault) std::rethrow_exception(fault);
  }
  // A second Ctrl-C ends the process: the first may not be heard, as by a loss that does not end.
  bool is_interrupted() {
    const nb::gil_scoped_acquire lock;
    if (raised_ || PyErr_CheckSignals() == 0) return raised_.has_value();
    raised_.emplace();
    handler_ = PyOS_setsig(SIGINT, SIG_DFL);
    return true;
  }

  static bool names_length(const std::vector<config::Setting>& settings) {
    return std::ranges::count(settings, "rollout.max_new_tokens", &config::Setting::name) > 0;
  }
  // A length that nobody asked for gives way to a short context.
  void fit_length(const std::vector<data::Prompt>& prompts, rollout::Sampling& sampling) const {
    int64_t longest = 0;
    for (const data::Prompt& prompt : prompts) longest = std::max<int64_t>(longest, std::ssize(prompt.ids));
    const int64_t room = session_->context_tokens() - longest;
    if (room > 0) sampling.max_new_tokens = std::min(sampling.max_new_tokens, room);
  }

  // The recipe's, with what a call says.
  rollout::Sampling sampling(const Settings& settings) const {
    std::vector<config::Setting> all = settings_;
    std::ranges::move(settings_of(settings), std::back_inserter(all));
    return config::load_config("", all).rollout.sampling;
  }

  std::vector<config::Setting> settings_;
  std::optional<nb::python_error> raised_;  // by a handler, during a call
  PyOS_sighandler_t handler_ = SIG_DFL;     // that of Ctrl-C before it
  std::unique_ptr<session::Session> session_;
};

}  // namespace

void declare_session(nb::module_& module) {
  nb::class_<OwnLoop>(module, "Session")
      .def(nb::init<const Settings&>(), nb::arg("settings"))
      .def("encode_text", &OwnLoop::encode_text, nb::arg("text"))
      .def("encode_messages", &OwnLoop::encode_messages, nb::arg("json"))
      .def("sample", &OwnLoop::sample, nb::arg("prompts"), nb::arg("n"), nb::arg("stop"), nb::arg("settings"))
      .def("logprobs", &OwnLoop::logprobs, nb::arg("rows"), nb::arg("settings"))
      .def("forward_backward", &OwnLoop::forward_backward, nb::arg("rows"), nb::arg("loss").none(), nb::arg("settings"))
      .def("step", &OwnLoop::step, nb::arg("lr").none())
      .def("num_steps", &OwnLoop::num_steps)
      .def("save", &OwnLoop::save)
      .def("load", &OwnLoop::load);
}

}  // namespace tandem::python
