// SPDX-License-Identifier: Apache-2.0
// Recipes as files: YAML to RunConfig and back.

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/strings.h"
#include "tandem/config/algorithm.h"
#include "tandem/config/config.h"
#include "tandem/reward/rule.h"

namespace tandem::config {
namespace {

constexpr int64_t kMostRecipeBytes = int64_t{1} << 24;

OptionList list_options(RunConfig& config) {
  OptionList list;
  describe(list, config);
  return list;
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }

std::vector<std::string> names_ending_in(const OptionList& list, const std::string& part) {
  std::vector<std::string> full;
  for (const OptionEntry& entry : list.entries)
    if (last_part(entry.path) == part) full.push_back(entry.path);
  return full;
}

// A name without its section: what ends so, or nearly so, is meant.
[[noreturn]] void refuse_short_name(const OptionList& list, const std::string& name, const std::string& where) {
  std::vector<std::string> parts;
  for (const OptionEntry& entry : list.entries) parts.push_back(last_part(entry.path));
  const std::string part = nearest_name(name, parts);
  const std::vector<std::string> full = names_ending_in(list, part);
  if (part == name) throw UserError(where, name + " names no section", (full.size() > 1 ? "one of " : "expected ") + joined(full, ", "));
  throw UserError(where, "unknown option " + name, (full.size() > 1 ? "the nearest are " : "the nearest is ") + joined(full, ", "));
}

// The option whose path is nearest, or whose help begins like a name of several words: train.learning_rate means train.lr, whose help is
// "Learning rate at its highest".
std::string nearest_option(const OptionList& list, const std::string& name) {
  std::vector<std::string> names;
  std::map<std::string, std::string> meant;
  const auto add = [&](const std::string& as, const std::string& path) {
    if (meant.emplace(as, path).second) names.push_back(as);
  };
  for (const OptionEntry& entry : list.entries) add(entry.path, entry.path);
  const auto num_words = std::ranges::count(name, '_') + 1;
  for (const OptionEntry& entry : list.entries) {
    if (num_words == 1) break;
    std::istringstream help{std::string(entry.ref.help)};
    std::string as = entry.path.substr(0, entry.path.find('.') + 1), word;
    for (int64_t i = 0; i < num_words && help >> word; ++i) as += (i > 0 ? "_" : "") + word;
    std::ranges::transform(as, as.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    add(as, entry.path);
  }
  return meant.at(nearest_name(name, names));
}

const OptionEntry& find_option(const OptionList& list, const std::string& name, const std::string& where) {
  for (const OptionEntry& entry : list.entries)
    if (entry.path == name) return entry;
  for (const OptionSection& section : list.sections)
    if (section.path == name)
      throw UserError(where, name + " is a section, and no option", "one of its options, as `tandem config` has them");
  if (name.find('.') == std::string::npos) refuse_short_name(list, name, where);
  throw UserError(where, "unknown option " + name, "the nearest is " + nearest_option(list, name));
}

std::string place(const std::string& path, const YAML::Node& node) { return path + ":" + std::to_string(node.Mark().line + 1); }

std::string name_of(const YAML::Node& key, const std::string& prefix, const std::string& path) {
  if (!key.IsScalar())
    throw UserError(place(path, key), "the name of an option is no text", "sections such as `train:` with options in them");
  return prefix + key.Scalar();
}

std::vector<std::string> texts_of(const YAML::Node& node, const OptionEntry& entry, const std::string& path) {
  std::vector<std::string> texts;
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) throw UserError(place(path, item), entry.path + " holds an item that is no text", "expected a list of texts");
    texts.push_back(item.Scalar());
  }
  return texts;
}

// {a: 1, b: 2} is [a=1, b=2].
std::vector<std::string> pairs_of(const YAML::Node& node, const OptionEntry& entry, const std::string& path) {
  std::vector<std::string> texts;
  for (const auto& pair : node) {
    if (!pair.first.IsScalar() || !pair.second.IsScalar())
      throw UserError(place(path, pair.first), entry.path + " holds an item that is no text", "expected a list of texts, or `name: value`");
    texts.push_back(pair.first.Scalar() + "=" + pair.second.Scalar());
  }
  return texts;
}

void apply_value(const YAML::Node& node, const OptionEntry& entry, const std::string& where, const std::string& path) {
  auto* texts = std::get_if<std::vector<std::string>*>(&entry.ref.value);
  if (node.IsSequence() && !texts) throw UserError(where, entry.path + " is a list", join_text("expected ", option_type(entry.ref.value)));
  if (node.IsSequence() || node.IsMap()) {
    **texts = node.IsMap() ? pairs_of(node, entry, path) : texts_of(node, entry, path);
    check_option(entry, where);
  } else {
    set_option(entry, node.IsScalar() ? node.Scalar() : "", where);
  }
}

bool is_list_option(const OptionList& list, const std::string& name) {
  return std::ranges::any_of(list.entries, [&](const OptionEntry& entry) {
    return entry.path == name && std::holds_alternative<std::vector<std::string>*>(entry.ref.value);
  });
}

// Options of earlier versions that a run folder's config.yaml may have. What each turned on is always done now.
constexpr const char* kAlwaysOn[] = {"workers.split", "workers.prefetch", "workers.hierarchical", "workers.dynamic_read"};

bool is_always_on(const std::string& name, const YAML::Node& value, const std::string& where) {
  if (std::ranges::find(kAlwaysOn, name) == std::end(kAlwaysOn)) return false;
  if (!value.IsScalar() || value.Scalar() != "true") throw UserError(where, name + " can no longer be turned off", "no such line");
  return true;
}

// `given` are the options that the file has set so far.
void apply_yaml(const YAML::Node& node, const std::string& prefix, const OptionList& list, const std::string& path,
                std::set<std::string>& given) {
  for (const auto& pair : node) {
    const std::string name = name_of(pair.first, prefix, path), where = place(path, pair.first);
    if (is_always_on(name, pair.second, where)) continue;
    if (!pair.second.IsMap() || is_list_option(list, name)) {
      apply_value(pair.second, find_option(list, name, where), where, path);
      if (!given.insert(name).second) throw UserError(where, name + " stands here a second time", "each option once");
      continue;
    }
    bool known = false;
    std::vector<std::string> names;
    for (const OptionSection& section : list.sections) known |= section.path == name, names.push_back(section.path);
    if (!known) throw UserError(where, "unknown section " + name, "the nearest is " + nearest_name(name, names));
    apply_yaml(pair.second, name + ".", list, path, given);
  }
}

// The text of a file or, where there is none, of the recipe of that name in the program.
std::string recipe_text(const std::string& path) {
  if (std::filesystem::exists(path)) return RegularFile(path, "a YAML file; configs/ has some").read_whole(kMostRecipeBytes);
  std::vector<std::string> names;
  for (const Asset& recipe : assets()) {
    if (recipe.name == path || recipe.name == path + ".yaml") return std::string(recipe.bytes);
    names.emplace_back(recipe.name.substr(0, recipe.name.rfind('.')));
  }
  throw UserError(path, "no such recipe", "a YAML file, or one in the program: " + joined(names, ", "));
}

YAML::Node read_yaml(const std::string& path) {
  const std::string text = recipe_text(path);
  try {
    YAML::Node node = YAML::Load(text);
    if (!node.IsMap() && !node.IsNull()) throw UserError(path, "is not a mapping", "sections such as `train:`");
    return node;
  } catch (const YAML::Exception& e) {
    throw UserError(path + ":" + std::to_string(e.mark.line + 1), "is not valid YAML: " + e.msg,
                    "check brackets, colons and indentation of this line and the one above");
  }
}

// The named algorithm is the base that the recipe's own settings refine, so it is applied before them.
std::string algorithm_name(const YAML::Node& node, const std::vector<Setting>& settings, const std::string& fallback) {
  std::string name = fallback;
  const YAML::Node algo = node.IsMap() ? node["algo"] : YAML::Node();
  if (algo && algo.IsMap() && algo["name"] && algo["name"].IsScalar()) name = algo["name"].Scalar();  // apply_yaml refuses the rest
  for (const Setting& s : settings)
    if (s.name == "algo.name") name = s.value;
  return name;
}

}  // namespace

std::vector<std::string> given_options(const std::string& path, const std::vector<Setting>& settings) {
  RunConfig config;
  const YAML::Node node = path.empty() ? YAML::Node() : read_yaml(path);
  std::set<std::string> given;
  if (node.IsMap()) apply_yaml(node, "", list_options(config), path, given);
  for (const Setting& s : settings) given.insert(s.name);
  return {given.begin(), given.end()};
}

RunConfig load_config(const std::string& path, const std::vector<Setting>& settings) {
  RunConfig config;
  const YAML::Node node = path.empty() ? YAML::Node() : read_yaml(path);
  config.algo = algo::named_algorithm(algorithm_name(node, settings, config.algo.name));
  const OptionList list = list_options(config);
  std::set<std::string> given;
  if (node.IsMap()) apply_yaml(node, "", list, path, given);
  for (const Setting& s : settings) {
    set_option(find_option(list, s.name, s.where), s.value, s.where);
    given.insert(s.name);
  }
  if (config.algo.advantage == "gae" && !given.contains("critic.lr")) config.critic.train.lr = config.train.lr;
  const reward::Options& r = config.reward;
  const bool names_rule = !r.rule.empty() || !r.rules.empty() || !r.by_source.empty() || !r.python.empty() || !r.url.empty() ||
                          !r.model.empty();
  if (config.has_episodes() && !names_rule) config.reward.rule = "episode";
  for (const OptionEntry& entry : list.entries) check_option(entry, path.empty() ? "defaults" : path);
  if (config.run.dir.empty()) config.run.dir = "runs/" + (path.empty() ? std::string("run") : std::filesystem::path(path).stem().string());
  validate(config, path.empty() ? "options" : path);
  return config;
}

namespace {

// What an algorithm asks of the other sections.
void check_algorithm(const RunConfig& c, const std::string& where) {
  // verl would take the raw score for the advantage, TRL refuses as we do.
  if (c.schedule.queue.group_size < 2 && !c.algo.allows_single_samples())
    throw UserError(where, "schedule.group_size is 1, and algo.advantage " + c.algo.advantage + " compares the responses of a group",
                    "at least 2");
  if (c.algo.filter_groups && c.schedule.queue.group_size < 2 && !c.algo.compares_with_greedy())
    throw UserError(where, "algo.filter_groups is on and schedule.group_size is 1: the scores of a group of one are always alike",
                    "a group_size of at least 2, or filter_groups: false");
  if (c.algo.kl_in_reward && c.algo.kl_coef == 0)
    throw UserError(where, "algo.kl_in_reward is on and algo.kl_coef is 0", "a kl_coef, such as 0.001, or kl_in_reward: false");
  if (c.algo.kl_in_reward && c.algo.kl_weighted)
    throw UserError(where, "algo.kl_weighted multiplies the KL term of the loss, and algo.kl_in_reward leaves none there",
                    "one of both");
  if (c.algo.kl_target > 0 && c.algo.kl_coef == 0 && c.algo.advantage != "distillation")
    throw UserError(where, "algo.kl_target moves algo.kl_coef, and 0 stays 0", "a kl_coef to begin with, such as 0.001");
  const int64_t samples = c.schedule.queue.groups_per_step * c.schedule.queue.group_size;
  if (c.algo.kl_target > 0 && c.algo.kl_horizon < static_cast<double>(samples))
    throw UserError(where, join_text("algo.kl_horizon is ", c.algo.kl_horizon, ", and a step has ", samples, " samples"),
                    "at least as many: the weight would change by more than a fifth in a step");
  if (c.algo.advantage == "distillation" && c.model.ref_model_load_path.empty())
    throw UserError(where, "algo.advantage is distillation, and there is no teacher", "model.ref_model_load_path: the teacher's directory");
  if (c.algo.advantage == "distillation" && (c.algo.kl_coef > 0 || c.algo.kl_target > 0))
    throw UserError(where, "algo.advantage is distillation, whose teacher is the reference: algo.kl_coef counts it twice",
                    "kl_coef and kl_target 0");
  if (c.algo.advantage == "distillation" && c.algo.filter_groups)
    throw UserError(where, "algo.filter_groups looks at scores, and distillation does not learn from them", "filter_groups: false");
  if (c.algo.kl_cut > 0 && c.algo.kl_weighted)
    throw UserError(where, "algo.kl_cut bounds an estimate, and algo.kl_weighted multiplies it without any bound", "one of both");
  if (c.critic.bootstrap_truncated && c.algo.advantage != "gae")
    throw UserError(where, "critic.bootstrap_truncated is on, and algo.advantage " + c.algo.advantage + " has no critic",
                    "algo.advantage: gae, or false");
  if (!c.critic.path.empty() && c.algo.advantage != "gae")
    throw UserError(where, "critic.path names a critic, and algo.advantage " + c.algo.advantage + " has none", "algo.advantage: gae");
  if (c.algo.mini_batches > c.schedule.queue.groups_per_step)
    throw UserError(where,
                    join_text("algo.mini_batches is ", c.algo.mini_batches, "; a batch has ", c.schedule.queue.groups_per_step, " groups"),
                    "at most schedule.groups_per_step");
  if (c.algo.max_kl > 0 && c.algo.epochs == 1 && c.algo.mini_batches == 1)
    throw UserError(where, "algo.max_kl ends further updates on a batch, and there are none",
                    "algo.epochs or algo.mini_batches above 1, or max_kl 0");
  if (c.algo.kl_cut > 0 && !c.algo.kl_estimator.starts_with("k3"))
    throw UserError(where, "algo.kl_cut cuts the estimate k3, and algo.kl_estimator is " + c.algo.kl_estimator, "k3 or k3+, or kl_cut 0");
  const algo::Algorithm algorithm = algorithm_of(c);
  const OldLogprobs old = old_logprobs_of(c, algorithm);
  if (c.algo.max_kl > 0 && (old.loglinear || (c.staleness() > 0 && old.of_stale_rollout)))
    throw UserError(where, "algo.max_kl looks at the KL from old log-probabilities, and older samples have those of other weights",
                    "schedule.old_logprobs: recompute, or max_kl 0");
  if (c.algo.loss == "gmpo" && (c.algo.correction_outside == "zero" || !c.algo.rejection.empty() || c.algo.off_policy_delta > 0))
    throw UserError(where, "algo.loss is gmpo, whose loss is a response's: no token of it can be left out",
                    "correction_outside: truncate, no rejection and off_policy_delta 0");
  const bool of_stale_anew = c.staleness() > 0 && (old.loglinear || c.schedule.old_logprobs == "recompute");
  if (of_stale_anew && algorithm.correction.level == algo::WeightLevel::kNone)
    throw UserError(where,
                    "schedule.old_logprobs is " + c.schedule.old_logprobs +
                        ": samples of older weights would be trained as if they were of the current ones",
                    "algo.correction: token, or old_logprobs: auto");
  if (algorithm.correction.active() && old.of_rollout)
    throw UserError(where,
                    "algo.correction or algo.rejection is on, and old log-probabilities are the rollout's own: nothing is to be corrected",
                    "schedule.old_logprobs: auto or recompute");
  if (c.algo.correction_normalize && old.loglinear)
    throw UserError(where, "algo.correction_normalize wants an update's weights before it, and schedule.old_logprobs loglinear has none",
                    "old_logprobs: auto or recompute, or correction_normalize: false");
  if (c.algo.correction_normalize && algorithm.correction.level == algo::WeightLevel::kNone)
    throw UserError(where, "algo.correction_normalize is on, and there are no weights: algo.correction is " + c.algo.correction,
                    "algo.correction: token, or correction_normalize: false");
}

void check_listen(const std::string& listen, const std::string& where) {
  if (listen.empty()) return;
  const size_t colon = listen.rfind(':');
  const std::string host = listen.substr(0, std::min(colon, listen.size()));
  const std::string port = colon == std::string::npos ? "" : listen.substr(colon + 1);
  const char* const right =
      "HOST:PORT with an address of this machine that workers reach, such as 10.0.0.7:7070; port 0 is any that is free";
  int number = -1;
  const auto [end, fault] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (host.empty() || host.find('/') != std::string::npos || fault != std::errc() || end != port.data() + port.size() || number < 0 ||
      number > 65535)
    throw UserError(where, "workers.listen is " + listen, right);
  for (const char* any : {"0.0.0.0", "*", "[::]", "::"})
    if (host == any) throw UserError(where, "workers.listen is " + listen + ", every address of this machine: workers need one", right);
}

}  // namespace

void validate(const RunConfig& c, const std::string& where) {
  if (c.schedule.kind == "sync" && c.schedule.queue.staleness != 0)
    throw UserError(where, join_text("schedule.staleness is ", c.schedule.queue.staleness, " under sync"),
                    "schedule.kind: stale, or staleness 0");
  if (c.schedule.mode == "free" && (c.staleness() == 0 || !c.parallel.has_sides()))
    throw UserError(where, join_text("schedule.mode is free, and with parallel.placement ", c.parallel.placement, " and staleness ",
                                     c.staleness(), " nobody generates while others train"),
                    "parallel.placement: split or mixed and schedule.kind: stale with a staleness above 0, or no mode");
  if (c.has_workers() && c.parallel.placement != "colocated")
    throw UserError(where, "workers generate, and parallel.placement is " + c.parallel.placement, "colocated: all ranks train");
  if (c.has_workers() && !c.schedule.mode.empty())
    throw UserError(where, "workers generate, and schedule.mode says how ranks do", "no schedule.mode");
  if (c.has_episodes() && c.algo.compares_with_greedy())
    throw UserError(where, "algo.advantage is " + c.algo.advantage + ", which compares with a greedy answer, and episodes have none",
                    "another algo.advantage, or no episode.environment");
  if (c.has_episodes() && scores_in_stage(c))
    throw UserError(where, "parallel.placement is " + c.parallel.placement + ", where a reward model scores all samples at once, and an "
                    "environment scores its own", "parallel.placement: colocated, or no episode.environment");
  if (!c.has_episodes() && c.reward.rule == "episode")
    throw UserError(where, "reward.rule is episode, and there is no environment that scores", "episode.environment, or another rule");
  check_listen(c.workers.listen, where);
  check_algorithm(c, where);
  if (!(c.reward.clip_low < c.reward.clip_high))
    throw UserError(where, join_text("reward.clip_low is ", c.reward.clip_low, ", reward.clip_high ", c.reward.clip_high),
                    "a lower bound below the upper one; -inf and inf are none");
  reward::check_used(c.reward, where);
  for (const auto& [name, on] : {std::pair{"param", c.memory.offload_train_param}, std::pair{"grad", c.memory.offload_train_grad},
                                 std::pair{"optimizer", c.memory.offload_train_optimizer}})
    if (on && c.parallel.has_sides())
      throw UserError(where, join_text("memory.offload_train_", name, " is on, and parallel.placement is ", c.parallel.placement,
                                       ", which keeps training and rollout on the device"),
                      "false, or another parallel.placement");
  algo::check_words(c.algo);
}

namespace {

// Names of a section's options that differ.
std::vector<std::string> different_options(const RunConfig& a, const RunConfig& b, const std::string& section) {
  RunConfig left = a, right = b;
  const OptionList mine = list_options(left), other = list_options(right);
  std::vector<std::string> names;
  for (size_t i = 0; i < mine.entries.size(); ++i) {
    const OptionEntry &one = mine.entries[i], &two = other.entries[i];
    if (one.path.starts_with(section + ".") && option_text(one.ref.value) != option_text(two.ref.value)) names.push_back(one.path);
  }
  return names;
}

}  // namespace

bool equal_section(const RunConfig& a, const RunConfig& b, const std::string& section) { return different_options(a, b, section).empty(); }

std::vector<std::string> changed_options(const RunConfig& config, const std::string& section) {
  RunConfig usual;
  usual.algo = algo::named_algorithm(config.algo.name);  // as load_config begins
  return different_options(config, usual, section);
}

std::string to_yaml(const RunConfig& config) {
  RunConfig copy = config, defaults;
  const std::string usual_algorithm = defaults.algo.name;
  defaults.algo = algo::named_algorithm(config.algo.name);  // as load_config begins
  defaults.algo.name = usual_algorithm;
  const OptionList list = list_options(copy), usual = list_options(defaults);
  std::ostringstream out;
  std::string section;
  for (size_t i = 0; i < list.entries.size(); ++i) {
    const std::string &path = list.entries[i].path, text = option_text(list.entries[i].ref.value);
    const auto dot = path.find('.');
    if (path == "critic.lr" && config.algo.advantage != "gae") continue;  // so that it still follows the actor's, once there is a critic
    if (const std::string now = path.substr(0, dot); now != section) out << (section = now) << ":\n";
    out << "  " << path.substr(dot + 1) << ": " << text;
    if (const std::string was = option_text(usual.entries[i].ref.value); was != text) out << "  # default: " << was;
    out << "\n";
  }
  return out.str();
}

std::vector<std::string> allowed_words(const OptionRef& option) {
  std::string no_word = "\x01";
  std::vector<std::string> no_words{no_word};
  OptionValue none = &no_word;
  if (std::holds_alternative<std::vector<std::string>*>(option.value)) none = &no_words;
  else if (!std::holds_alternative<std::string*>(option.value)) return {};
  if (!option.check) return {};
  std::istringstream wanted(option.check(none));
  std::vector<std::string> words{std::istream_iterator<std::string>(wanted), {}};
  if (words.size() < 3 || words[0] != "one" || words[1] != "of") return {};
  words.erase(words.begin(), words.begin() + 2);
  std::replace(words.begin(), words.end(), std::string("''"), std::string());
  return words;
}

std::vector<std::string> options_ending_in(const std::string& part) {
  RunConfig config;
  return names_ending_in(list_options(config), part);
}

std::string words_text(const std::string& name) {
  RunConfig config;
  const OptionList list = list_options(config);
  const auto entry = std::ranges::find(list.entries, name, &OptionEntry::path);
  TANDEM_CHECK(entry != list.entries.end(), "no option ", name);
  return joined(allowed_words(entry->ref), "|");
}

namespace {

// " One of `a`, `b`." behind the help of an option that allows so few words; of a list, " Each is one of `a`, `b`."
std::string words_sentence(const OptionRef& option) {
  const char* begin = std::holds_alternative<std::vector<std::string>*>(option.value) ? " Each is one of `" : " One of `";
  std::string text;
  for (const std::string& word : allowed_words(option))
    text += (text.empty() ? begin : ", `") + (word.empty() ? "\"\"" : word) + "`";
  return text.empty() ? text : text + ".";
}

}  // namespace

std::string option_reference() {
  RunConfig config;
  config.algo = algo::named_algorithm(config.algo.name);  // as load_config begins
  const OptionList list = list_options(config);
  std::ostringstream out;
  out << "# Options\n\nA recipe is a YAML file with some of these sections and options; the others keep their defaults:\n\n"
         "```\nmodel:\n  path: Qwen/Qwen2.5-0.5B-Instruct\ndata:\n  train: prompts.jsonl\nreward:\n  rule: math\n```\n\n"
         "`tandem run RECIPE` starts the run. On the command line, `--set section.option=value` sets one option. `tandem config RECIPE` "
         "shows the recipe with every default filled in. `tandem config` prints this page.\n";
  for (const OptionSection& section : list.sections) {
    out << "\n## " << section.path << "\n\n" << section.help << "\n\n| option | default | meaning |\n|---|---|---|\n";
    for (const OptionEntry& entry : list.entries)
      if (entry.path.rfind(section.path + ".", 0) == 0)
        out << "| `" << entry.path << "` | `" << option_text(entry.ref.value) << "` | " << entry.ref.help << words_sentence(entry.ref)
            << " |\n";
  }
  return out.str();
}

}  // namespace tandem::config
