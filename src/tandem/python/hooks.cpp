// SPDX-License-Identifier: Apache-2.0
#include "tandem/python/hooks.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tandem/base/error.h"
#include "tandem/base/json_depth.h"
#include "tandem/python/tensors.h"
#include "tandem/reward/batch.h"

namespace tandem::python {
namespace {

namespace nb = nanobind;

/// A function of Python that any thread may call and let go of.
using Function = std::shared_ptr<nb::object>;

Function kept(nb::object function) {
  return Function(new nb::object(std::move(function)), [](nb::object* held) {
    nb::gil_scoped_acquire lock;
    delete held;
  });
}

template <class Body>
auto with_python(const char* where, const Body& body) {
  nb::gil_scoped_acquire lock;
  try {
    return body();
  } catch (const nb::python_error& e) {
    const std::string what = nb::cast<std::string>(nb::str(e.value()));
    const nb::object remedy = nb::getattr(e.value(), "remedy", nb::none());  // a HookError has one
    if (remedy.is_none()) throw UserError(where, what, "docs/python.md");
    if (nb::cast<bool>(e.value().attr("is_not_finite"))) throw runtime::NotFiniteGiven(where, what, nb::cast<std::string>(remedy));
    throw UserError(where, what, nb::cast<std::string>(remedy));
  } catch (const nb::cast_error&) {
    throw UserError(where, "the adapter of the function returned something else than it should", "see python/tandem/_hooks.py");
  }
}

at::Tensor gradient_of(const nb::handle& value, int64_t count) {
  const at::Tensor given = from_python(value, at::kFloat);
  if (!given.defined()) return {};
  if (given.numel() != count) throw nb::cast_error();
  return given.clone();
}

nb::dict columns_of(const train::LossColumns& columns) {
  const algo::PolicyLossInput& in = columns.policy;
  nb::dict out;
  out["logprobs"] = to_python(in.logprobs_T);
  out["entropy"] = to_python(columns.entropy_R);
  out["old"] = to_python(in.old_T);
  out["behavior"] = to_python(in.behavior_T);
  out["reference"] = to_python(columns.reference_R);
  out["advantages"] = to_python(in.advantages_T);
  out["correction"] = to_python(in.correction_T);
  out["mask"] = to_python(in.trainable_T);
  out["offsets"] = to_python(in.offsets_S);
  out["global_tokens"] = in.global_tokens;
  out["global_sequences"] = in.global_sequences;
  return out;
}

// What _hooks.py:_told notes: (name, file).
runtime::HostFunction host_function(const char* option, const nb::object& function) {
  const auto [name, file] = nb::cast<std::tuple<std::string, std::string>>(function.attr("origin"));
  return {option, name, file};
}

}  // namespace

runtime::Hooks hooks_of(nb::object reward, nb::object advantage, nb::object loss) {
  runtime::Hooks hooks;
  for (const auto& [option, function] : {std::pair("reward", reward), std::pair("advantage", advantage), std::pair("loss", loss)})
    if (!function.is_none()) hooks.functions.push_back(host_function(option, function));
  if (!reward.is_none())
    hooks.reward = [function = kept(std::move(reward))](std::span<const reward::Answer> answers) {
      const std::string batch = reward::batch_json(answers);
      const std::string reply = with_python("reward", [&] { return nb::cast<std::string>((*function)(batch)); });
      return reward::scores_of(parse_or_discard<nlohmann::json>(reply), answers.size(), "python");
    };
  if (!advantage.is_none())
    hooks.advantage = [function = kept(std::move(advantage))](const algo::Responses& responses) {
      return with_python("advantage", [&] {
        return nb::cast<std::vector<double>>((*function)(copied<double>(responses.scores), copied<int64_t>(responses.groups),
                                                         copied<int64_t>(responses.lengths)));
      });
    };
  if (!loss.is_none())
    hooks.loss = [function = kept(std::move(loss))](const train::LossColumns& columns) {
      return with_python("loss", [&] {
        const auto [value, by_logprobs, by_entropy] =
            nb::cast<std::tuple<double, nb::object, nb::object>>((*function)(columns_of(columns)));
        const int64_t R = columns.policy.logprobs_T.numel();
        return train::LossGradient{value, gradient_of(by_logprobs, R), gradient_of(by_entropy, R)};
      });
    };
  return hooks;
}

runtime::Hooks hooks_of_recipe(const config::RunConfig& config, const nb::object& load, runtime::Hooks given) {
  const auto loaded = [&](const char* kind, const std::string& name, bool is_given) -> nb::object {
    if (is_given || !algo::names_function(name)) return nb::none();
    return with_python((std::string("algo.") + kind).c_str(), [&] { return load(kind, name); });
  };
  const runtime::Hooks named = hooks_of(nb::none(), loaded("advantage", config.algo.advantage, static_cast<bool>(given.advantage)),
                                        loaded("loss", config.algo.loss, static_cast<bool>(given.loss)));
  if (named.advantage) given.advantage = named.advantage;
  if (named.loss) given.loss = named.loss;
  return given;
}

}  // namespace tandem::python
