// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/rule.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/strings.h"
#include "tandem/reward/composed_rule.h"
#include "tandem/reward/graders.h"

namespace tandem::reward {
namespace {

struct Spec {
  std::string name;
  std::vector<std::pair<std::string, std::string>> settings;
};

// Where a setting ends: a comma outside brackets. A backslash takes the next character with it, as regular expressions do.
size_t plain_end(const std::string& text, size_t at) {
  std::string open;  // the closing brackets awaited
  for (; at < text.size(); ++at) {
    const char c = text[at];
    const bool in_class = !open.empty() && open.back() == ']';  // other brackets are characters there
    if (c == '\\')
      ++at;
    else if (!open.empty() && c == open.back())
      open.pop_back();
    else if (const size_t kind = std::string_view("([{").find(c); kind != std::string_view::npos && !in_class)
      open += ")]}"[kind];
    else if (c == ',' && open.empty())
      return at;
  }
  return text.size();
}

// Takes one `option=value` and the comma behind it from `rest`. A value may stand in quotes, which hold anything but themselves.
std::pair<std::string, std::string> take_setting(std::string& rest, const std::string& text) {
  const size_t equals = rest.find('=');
  if (equals == std::string::npos || equals > rest.find(','))
    throw UserError("reward.rule", "`" + rest.substr(0, rest.find(',')) + "` in `" + text + "` is no setting", "expected option=value");
  const std::string name = trimmed(rest.substr(0, equals));
  const size_t begin = std::min(rest.find_first_not_of(" \t\n", equals + 1), rest.size());
  std::string value;
  size_t end;
  if (begin < rest.size() && (rest[begin] == '"' || rest[begin] == '\'')) {
    const size_t close = rest.find(rest[begin], begin + 1);
    end = std::min(close == std::string::npos ? close : rest.find_first_not_of(" \t\n", close + 1), rest.size());
    if (close == std::string::npos || (end < rest.size() && rest[end] != ','))
      throw UserError("reward.rule", "the value of `" + name + "` in `" + text + "` does not end with its quote",
                      "expected option='value', with the other kind of quote inside");
    value = rest.substr(begin + 1, close - begin - 1);
  } else {
    end = plain_end(rest, begin);
    value = trimmed(rest.substr(begin, end - begin));
  }
  rest.erase(0, end + 1);
  return {name, value};
}

Spec parse_spec(const std::string& text) {
  const size_t open = text.find('(');
  Spec spec{trimmed(text.substr(0, open)), {}};
  if (open == std::string::npos) return spec;
  if (!text.ends_with(')')) throw UserError("reward.rule", "`" + text + "` has no closing bracket", "expected name(option=value, ...)");
  std::string inside = text.substr(open + 1, text.size() - open - 2);
  while (!trimmed(inside).empty()) spec.settings.push_back(take_setting(inside, text));
  return spec;
}

// Each rule that an option names, with its settings; a weight may stand behind.
std::vector<std::string> specs_of(const Options& o) {
  std::vector<std::string> specs = o.rules;
  for (const std::string& entry : o.by_source) specs.push_back(entry.substr(entry.find('=') + 1));
  if (o.rules.empty() && (o.by_source.empty() || !o.rule.empty())) specs.push_back(rule_of(o));
  return specs;
}

// Stands for the rewards that an environment gives.
std::unique_ptr<Rule> episode_rule(const Options&) {
  const auto score = [](const Answer& answer) -> Score {
    if (answer.truncated) return {};  // it found no room, and the environment had given none by then
    throw UserError("the environment", "gave no reward for an episode",
                    "a reward with one of its turns, or a reward.rule that scores the text");
  };
  return std::make_unique<FunctionRule>("episode", score, RuleNeeds{false, true, true});
}

// Rules that are more than a function of one answer, made once per reward.
using Worker = std::pair<const char*, std::unique_ptr<Rule> (*)(const Options&)>;
constexpr Worker kWorkers[] = {{"episode", episode_rule},
                               {"length", [](const Options& o) { return length_rule(make_rule("math", o)); }},
                               {"math_verify", [](const Options& o) { return math_verify_rule(o, o); }},
                               {"python", [](const Options& o) { return python_rule(o, o); }},
                               {"code", [](const Options& o) { return code_rule(o, o.python_executable); }},
                               {"http", [](const Options& o) { return http_rule(o, o.timeout_s); }}};
constexpr const char* kModel = "model";

}  // namespace

FunctionRule::FunctionRule(const std::string& name, std::function<Score(const Answer&)> function, Needs needs,
                           std::function<void()> abandon)
    : Rule(name, needs, [name, function = std::move(function)](std::span<const Answer> answers) {
        std::vector<Score> scores;
        for (const Answer& answer : answers) {
          Score& score = scores.emplace_back(function(answer));
          if (score.parts.empty()) score.parts = {{name, score.score}};
        }
        return scores;
      }, std::move(abandon)) {}

std::unique_ptr<Rule> batch_rule(std::string name, Rule::Function function) {
  return std::make_unique<Rule>(std::move(name), RuleNeeds{false, true, true}, std::move(function));
}

std::vector<std::string> rule_names() {
  std::vector<std::string> names = function_rule_names();
  for (const Worker& worker : kWorkers) names.emplace_back(worker.first);
  names.emplace_back(kModel);
  return names;
}

std::string listed_rules() { return joined(rule_names(), " "); }

std::string_view rule_help() {
  static const std::string help =
      "Rule that grades an answer, such as `number` or `gsm8k(method=flexible)`, one of " + listed_rules() +
      " (docs/rewards.md); empty: `python`, `http` or `model` if `python`, `url` or `model` is set, else `exact`.";
  return help;
}

std::unique_ptr<Rule> make_rule(const std::string& text, const Options& base, const ModelRuleMaker& model) {
  const Spec spec = parse_spec(text);
  Options options = base;
  OptionList list;
  describe(list, static_cast<RuleOptions&>(options));
  for (const auto& [name, value] : spec.settings) {
    std::vector<std::string> names;
    for (const OptionEntry& entry : list.entries) names.push_back(entry.path);
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
      throw UserError("reward.rule " + spec.name, "there is no option `" + name + "`",
                      "the nearest is `" + nearest_name(name, names) + "`");
    set_option(list.entries[static_cast<size_t>(found - names.begin())], value, "reward.rule " + spec.name);
  }
  for (const auto& [name, make] : kWorkers)
    if (spec.name == name) return make(options);
  if (spec.name == kModel && model) return model(options);
  if (spec.name == kModel) throw UserError("reward.rule model", "no model can be run here", "a rule without one");
  std::unique_ptr<Rule> rule = function_rule(spec.name, options);
  if (!rule && spec.name.find(".py") != std::string::npos)
    throw UserError("reward.rule", "`" + spec.name + "` is a file, and no rule", "python(python=FILE.py:FUNCTION), or reward.python");
  if (!rule)
    throw UserError("reward.rule", "there is no rule `" + spec.name + "`",
                    "the nearest is `" + nearest_name(spec.name, rule_names()) + "`; expected one of " + listed_rules());
  if (spec.name == "math" && options.fallback == "math_verify")
    return math_with_fallback(std::move(rule), math_verify_rule(options, options));
  return rule;
}

std::string rule_of(const Options& options) {
  if (!options.rule.empty()) return options.rule;
  if ((!options.python.empty()) + (!options.url.empty()) + (!options.model.empty()) > 1)
    throw UserError("reward", "names more than one of python, url and model, and no rule",
                    "reward.rule, or all of them in reward.rules, such as [python=1, model=0.1]");
  return !options.python.empty() ? "python" : !options.url.empty() ? "http" : !options.model.empty() ? kModel : "exact";
}

std::vector<std::string> rule_names(const Options& o) {
  std::vector<std::string> specs = specs_of(o);
  for (std::string& spec : specs) spec = trimmed(spec.substr(0, spec.find_first_of("(=")));
  return specs;
}

std::vector<std::string> python_files(const Options& o) {
  std::vector<std::string> functions;
  if (!o.python.empty()) functions.push_back(o.python);
  for (const std::string& spec : specs_of(o))
    if (const size_t close = spec.rfind(')'); close != std::string::npos)
      for (const auto& [name, value] : parse_spec(spec.substr(0, close + 1)).settings)
        if (name == "python") functions.push_back(value);
  for (std::string& function : functions) function.resize(std::min(function.rfind(':'), function.size()));
  return functions;
}

void check_used(const Options& options, const std::string& where) {
  const std::vector<std::string> names = rule_names(options);
  const std::array<std::array<std::string, 3>, 3> uses = {
      {{"python", options.python, "python"}, {"url", options.url, "http"}, {"model", options.model, kModel}}};
  for (const auto& [option, value, rule] : uses)
    if (!value.empty() && std::ranges::find(names, rule) == names.end())
      throw UserError(where, join_text("reward.", option, " is '", value, "', and the reward goes by ", joined(names, ", "), " alone"),
                      join_text("an empty reward.rule, or ", rule, " as one of reward.rules; else an empty reward.", option));
}

namespace {

std::unique_ptr<Rule> weighted_sum(const Options& options, const ModelRuleMaker& model) {
  std::vector<std::shared_ptr<Rule>> rules;
  std::vector<double> weights;
  for (const std::string& item : options.rules) {
    const size_t bracket = item.rfind(')'), equals = item.find('=', bracket == std::string::npos ? 0 : bracket);
    double weight = 1.0;
    if (equals != std::string::npos) {
      const std::string number = trimmed(item.substr(equals + 1));
      const auto value = decimal_value(number);
      if (!value) throw UserError("reward.rules", "`" + item + "` has weight `" + number + "`", "expected a number, such as number=1.0");
      weight = *value;
    }
    rules.push_back(make_rule(trimmed(item.substr(0, equals)), options, model));
    weights.push_back(weight);
  }
  return composed_rule("rules", rules, [rules, weights](std::span<const Answer> answers) {
    std::vector<Score> sums(answers.size());
    for (size_t part = 0; part < rules.size(); ++part) {
      std::vector<Score> ones = rules[part]->score_batch(answers);
      for (size_t i = 0; i < sums.size(); ++i) {
        sums[i].score += weights[part] * ones[i].score;
        std::ranges::move(ones[i].parts, std::back_inserter(sums[i].parts));
        if (sums[i].extracted.empty()) sums[i].extracted = std::move(ones[i].extracted);
      }
    }
    return sums;
  });
}

std::unique_ptr<Rule> one_reward(const Options& options, const ModelRuleMaker& model) {
  return options.rules.empty() ? make_rule(rule_of(options), options, model) : weighted_sum(options, model);
}

}  // namespace

std::unique_ptr<Rule> make_reward(const Options& options, const ModelRuleMaker& model) {
  if (options.by_source.empty()) return one_reward(options, model);
  std::vector<SourceRule> rules;
  for (const std::string& entry : options.by_source) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || trimmed(entry.substr(0, equals)).empty())
      throw UserError("reward.by_source", "`" + entry + "` names no data set with a rule",
                      "expected SOURCE=RULE, such as openai/gsm8k=gsm8k");
    const std::string source = trimmed(entry.substr(0, equals)), spec = trimmed(entry.substr(equals + 1));
    const auto same = [&](const SourceRule& other) { return other.spec == spec; };
    const auto known = std::find_if(rules.begin(), rules.end(), same);  // its workers serve both
    rules.push_back({source, spec, known == rules.end() ? std::shared_ptr<Rule>(make_rule(spec, options, model)) : known->rule});
  }
  return by_source(std::move(rules), options.rule.empty() && options.rules.empty() ? nullptr : one_reward(options, model));
}

}  // namespace tandem::reward
