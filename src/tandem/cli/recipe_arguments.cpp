// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/recipe_arguments.h"

#include <CLI/App.hpp>
#include <algorithm>
#include <array>

#include "tandem/base/error.h"

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
    {"--run-dir", "run.dir", "run.dir", "DIR", "The run", "Folder for everything the run writes. Default: runs/NAME_OF_THE_RECIPE"},
    {"--steps", "run.steps", "supervised.steps", "N", "The run", "Number of optimizer updates"},
    {"--seed", "run.seed", "run.seed", "N", "The run", "Seed of sampling and of random weights. data.seed orders the prompts"},
    {"--model", "model.path", "model.path", "DIR", "The run",
     "Model to start from: a Hugging Face directory, or OWNER/NAME to download from a hub"},
    {"--max-shard-size", "checkpoint.max_shard_size", "checkpoint.max_shard_size", "SIZE", "The run",
     "Largest file of saved weights, such as 2GB. Default: 5GB"},
    {"--schedule", "schedule.kind", nullptr, nullptr, "Schedule", "sync: generate, then train. stale: generation runs ahead of training"},
    {"--rollout-workers", "workers.local", nullptr, "N", "Schedule",
     "Start N processes that generate. More can join later: see tandem rollout"},
    {"--staleness", "schedule.staleness", nullptr, "S", "Schedule",
     "Largest number of updates between a sample's first token and its training. Above 0 implies --schedule stale"},
    {"--ranks", "parallel.ranks", "parallel.ranks", "N", "Ranks",
     "Number of ranks on this machine: threads on the CPU, one process per device otherwise"},
    {"--train-layout", "parallel.train_layout", "parallel.train_layout", "LAYOUT", "Ranks",
     "How training is cut over the ranks, such as dp2,tp2 for two-way data and two-way tensor parallelism"},
    {"--rollout-layout", "parallel.rollout_layout", nullptr, "LAYOUT", "Ranks",
     "How generation is cut over the ranks. Default: as training"},
    {"--threads", "parallel.threads", "parallel.threads", "N", "Computing",
     "CPU threads of this process, shared by its ranks. 0: all cores"},
    {"--device", "run.device", "run.device", nullptr, "Computing",
     "Where to compute. auto: a GPU or NPU if the machine has one, else the CPU"},
    {"--kernels", "run.kernels", "run.kernels", nullptr, "Computing",
     "Which kernels compute. auto: Tandem's own for the device. aten: only libtorch's operators, on any device"},
    {"--dtype", "model.dtype", "model.dtype", nullptr, "Computing",
     "Number format of the computation. bfloat16 keeps float32 master weights"},
}};

}  // namespace

RecipeArguments::RecipeArguments(Presence presence, Kind kind) : presence_(presence), kind_(kind) {}

// The parser calls back at each use, so the order of the line is kept.
void RecipeArguments::declare(CLI::App& app) {
  const char* about = "Recipe: a YAML file that names model, prompts and reward, or the name of one in the program, such as quickstart";
  CLI::Option* config = app.add_option("CONFIG", path_, about)->type_name("FILE");
  if (presence_ == kRequired) config->required();
  app.add_option_function<std::string>(
         "--set", [this](const std::string& text) { given_.push_back({"", text}); },
         "Set one option of the recipe, such as --set train.lr=1e-5. Repeat it for more. The last one on the line wins")
      ->type_name("a.b=c")
      ->trigger_on_parse();
  declare_short_forms(app);
  const auto flag = [&](const char* name, std::vector<config::Setting> settings, const char* help) {
    return app.add_flag_callback(name, [this, name, settings] { note(name, settings); }, help)->trigger_on_parse();
  };
  flag("--no-eval", {{"eval.before", "false"}, {"eval.after", "false"}, {"eval.every_steps", "0"}},
       "Skip all evaluations")
      ->group("The run");
  flag("--parity", {{"run.parity", "true"}}, "Rollout and training compute the same bits of log-probability. Slower")->group("Computing");
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
