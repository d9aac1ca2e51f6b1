// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/recipe_arguments.h"

#include <CLI/App.hpp>
#include <array>

#include "tandem/base/error.h"
#include "tandem/cli/arguments.h"

namespace tandem::cli {
namespace {

struct ShortForm {
  const char* flag;
  const char* option;
  const char* supervised;  ///< the option under `tandem sft`; null where the flag would mean nothing
  const char* type;
  const char* group;
  const char* help;
};

constexpr std::array<ShortForm, 13> kShortForms = {{
    {"--run-dir", "run.dir", "run.dir", "DIR", "The run", "Run folder; default runs/NAME_OF_THE_RECIPE"},
    {"--steps", "run.steps", "supervised.steps", "N", "The run", "Optimizer steps"},
    {"--seed", "run.seed", "run.seed", "N", "The run", "Seed of sampling and of random weights"},
    {"--model", "model.path", "model.path", "DIR", "The run", "Hugging Face directory to start from"},
    {"--max-shard-size", "checkpoint.max_shard_size", "checkpoint.max_shard_size", "SIZE", "The run",
     "Most bytes of one file of exported weights, such as 2GB; default 5GB"},
    {"--schedule", "schedule.kind", nullptr, "sync|stale", "Schedule", "sync, or stale: rollout may run ahead of training"},
    {"--staleness", "schedule.staleness", nullptr, "S", "Schedule", "Updates a group may lag behind; above 0 implies --schedule stale"},
    {"--ranks", "parallel.ranks", "parallel.ranks", "N", "Ranks", "Ranks as threads of this process"},
    {"--train-layout", "parallel.train_layout", "parallel.train_layout", "LAYOUT", "Ranks", "Layout of training, such as dp2,tp2"},
    {"--rollout-layout", "parallel.rollout_layout", nullptr, "LAYOUT", "Ranks", "Layout of rollout; default that of training"},
    {"--threads", "parallel.threads", "parallel.threads", "N", "Computing",
     "Compute threads of all ranks of this process together; 0 takes every core"},
    {"--device", "run.device", "run.device", "cpu|cuda", "Computing", "Where to compute"},
    {"--dtype", "model.dtype", "model.dtype", "float32|bfloat16", "Computing", "Compute dtype"},
}};

}  // namespace

RecipeArguments::RecipeArguments(Presence presence, Kind kind) : presence_(presence), kind_(kind), short_forms_(kShortForms.size()) {}

void RecipeArguments::declare(CLI::App& app) {
  CLI::Option* config = app.add_option("CONFIG", path_, "Recipe: a YAML file, such as one of configs/")->type_name("FILE");
  if (presence_ == kRequired) config->required();
  add_repeated(app, "--set", set_, "Sets one option of the recipe, over a flag that sets it, too; may be repeated")->type_name("a.b=c");
  for (size_t i = 0; i < kShortForms.size(); ++i) {
    const ShortForm& form = kShortForms[i];
    if (kind_ == kSupervised && !form.supervised) continue;
    if (kind_ == kPrinted && std::string_view(form.flag) == "--schedule") continue;
    app.add_option(form.flag, short_forms_[i], form.help)->type_name(form.type)->group(form.group);
  }
  if (kind_ != kSupervised) app.add_flag("--no-eval", no_eval_, "No evaluation before, during or after")->group("The run");
  app.add_flag("--parity", parity_, "Rollout and training log-probabilities agree bit for bit; slower")->group("Computing");
}

std::vector<config::Setting> RecipeArguments::settings() const {
  std::vector<config::Setting> all;
  std::optional<std::string> schedule, staleness;
  for (size_t i = 0; i < kShortForms.size(); ++i) {
    if (!short_forms_[i]) continue;
    const std::string option = kind_ == kSupervised ? kShortForms[i].supervised : kShortForms[i].option;
    if (option == "schedule.kind") schedule = short_forms_[i];
    if (option == "schedule.staleness") staleness = short_forms_[i];
    all.push_back({option, *short_forms_[i], kShortForms[i].flag});
  }
  if (staleness && *staleness != "0" && !schedule) all.push_back({"schedule.kind", "stale", "--staleness"});
  if (schedule == "sync" && !staleness) all.push_back({"schedule.staleness", "0", "--schedule"});
  if (no_eval_)
    for (const char* option : {"eval.before", "eval.after"}) all.push_back({option, "false", "--no-eval"});
  if (no_eval_) all.push_back({"eval.every_steps", "0", "--no-eval"});
  if (parity_) all.push_back({"run.parity", "true", "--parity"});
  const std::vector<config::Setting> set = settings_of(set_);
  all.insert(all.end(), set.begin(), set.end());
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
