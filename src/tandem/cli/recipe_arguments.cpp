// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/recipe_arguments.h"

#include <CLI/App.hpp>
#include <algorithm>
#include <array>

#include "tandem/base/error.h"
#include "tandem/cli/arguments.h"

namespace tandem::cli {
namespace {

struct ShortForm {
  const char* flag;
  const char* option;
  const char* supervised;  ///< the option under `tandem sft`; null where the flag would mean nothing
  const char* type;        ///< null: the words that the option allows
  const char* group;
  const char* help;
};

constexpr std::array<ShortForm, 15> kShortForms = {{
    {"--run-dir", "run.dir", "run.dir", "DIR", "The run", "Run folder; default runs/NAME_OF_THE_RECIPE"},
    {"--steps", "run.steps", "supervised.steps", "N", "The run", "Optimizer steps"},
    {"--seed", "run.seed", "run.seed", "N", "The run", "Seed of sampling and of random weights"},
    {"--model", "model.path", "model.path", "DIR", "The run", "Hugging Face directory to start from, or OWNER/NAME on a hub"},
    {"--max-shard-size", "checkpoint.max_shard_size", "checkpoint.max_shard_size", "SIZE", "The run",
     "Most bytes of one file of exported weights, such as 2GB; default 5GB"},
    {"--schedule", "schedule.kind", nullptr, nullptr, "Schedule", "sync, or stale: rollout may run ahead of training"},
    {"--rollout-workers", "workers.local", nullptr, "N", "Schedule", "Processes that generate in place of the ranks; others may join"},
    {"--staleness", "schedule.staleness", nullptr, "S", "Schedule", "Updates a group may lag behind; above 0 implies --schedule stale"},
    {"--ranks", "parallel.ranks", "parallel.ranks", "N", "Ranks", "Ranks on this machine: threads on the CPU, processes on devices"},
    {"--train-layout", "parallel.train_layout", "parallel.train_layout", "LAYOUT", "Ranks", "Layout of training, such as dp2,tp2"},
    {"--rollout-layout", "parallel.rollout_layout", nullptr, "LAYOUT", "Ranks", "Layout of rollout; default that of training"},
    {"--threads", "parallel.threads", "parallel.threads", "N", "Computing",
     "Compute threads of all ranks of this process together; 0 takes every core"},
    {"--device", "run.device", "run.device", nullptr, "Computing", "Where to compute"},
    {"--kernels", "run.kernels", "run.kernels", nullptr, "Computing", "What computes; aten: libtorch's operators alone"},
    {"--dtype", "model.dtype", "model.dtype", nullptr, "Computing", "Compute dtype"},
}};

}  // namespace

RecipeArguments::RecipeArguments(Presence presence, Kind kind) : presence_(presence), kind_(kind) {}

// The parser calls back at each use, so the order of the line is kept.
void RecipeArguments::declare(CLI::App& app) {
  CLI::Option* config = app.add_option("CONFIG", path_, "Recipe: a YAML file, or the name of one in the program, such as quickstart");
  config->type_name("FILE");
  if (presence_ == kRequired) config->required();
  app.add_option_function<std::string>(
         "--set", [this](const std::string& text) { given_.push_back({"", text}); },
         "Sets one option of the recipe; may be repeated. Of two that set the same, as flags do, the later one counts")
      ->type_name("a.b=c")
      ->trigger_on_parse();
  declare_short_forms(app);
  const auto flag = [&](const char* name, std::vector<config::Setting> settings, const char* help) {
    return app.add_flag_callback(name, [this, name, settings] { note(name, settings); }, help)->trigger_on_parse();
  };
  flag("--no-eval", {{"eval.before", "false"}, {"eval.after", "false"}, {"eval.every_steps", "0"}},
       "No evaluation before, during or after")
      ->group("The run");
  flag("--parity", {{"run.parity", "true"}}, "Rollout and training log-probabilities agree bit for bit; slower")->group("Computing");
}

void RecipeArguments::declare_short_forms(CLI::App& app) {
  for (const ShortForm& form : kShortForms) {
    if (kind_ == kSupervised && !form.supervised) continue;
    if (kind_ == kPrinted && std::string_view(form.flag) == "--schedule") continue;
    const char* option = kind_ == kSupervised ? form.supervised : form.option;
    app.add_option_function<std::string>(
           form.flag, [this, &form, option](const std::string& value) { note(form.flag, {{option, value}}); }, form.help)
        ->type_name(form.type ? form.type : config::words_text(option))
        ->group(form.group)
        ->trigger_on_parse();
  }
}

void RecipeArguments::note(const char* flag, std::vector<config::Setting> settings) {
  std::erase_if(given_, [&](const config::Setting& earlier) { return earlier.where == flag; });
  for (config::Setting& setting : settings) {
    setting.where = flag;
    given_.push_back(std::move(setting));
  }
}

std::vector<config::Setting> RecipeArguments::settings() const {
  const auto is_given = [&](std::string_view flag) {
    return std::ranges::any_of(given_, [&](const config::Setting& s) { return s.where == flag; });
  };
  std::vector<config::Setting> all;
  for (const config::Setting& setting : given_) {
    if (setting.name.empty()) {
      all.push_back(settings_of({setting.value}).front());
      continue;
    }
    all.push_back(setting);
    if (setting.where == "--staleness" && setting.value != "0" && !is_given("--schedule"))
      all.push_back({"schedule.kind", "stale", "--staleness"});
    if (setting.where == "--schedule" && setting.value == "sync" && !is_given("--staleness"))
      all.push_back({"schedule.staleness", "0", "--schedule"});
  }
  return all;
}

std::vector<config::Setting> settings_of(const std::vector<std::string>& texts) {
  std::vector<config::Setting> all;
  for (const std::string& text : texts) {
    const size_t equal = text.find('=');
    if (equal == std::string::npos || equal == 0)
      throw UserError("--set", "`" + text + "` names no option and value", "expected section.option=value");
    all.push_back({text.substr(0, equal), text.substr(equal + 1), "--set"});
  }
  return all;
}

}  // namespace tandem::cli
