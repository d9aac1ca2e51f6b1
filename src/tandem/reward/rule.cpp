// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/rule.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tandem/base/error.h"
#include "tandem/base/json_depth.h"
#include "tandem/base/strings.h"
#include "tandem/reward/batch.h"
#include "tandem/reward/graders.h"
#include "tandem/reward/json_schema.h"
#include "tandem/reward/math/hendrycks.h"
#include "tandem/reward/math/math_answer.h"
#include "tandem/reward/worker_rules.h"
#include "tandem/text/regex.h"
#include "tandem/text/unicode.h"

namespace tandem::reward {
namespace {

using Function = std::function<Score(const Answer&)>;

Score verdict(bool right, std::string extracted) { return {right ? 1.0 : 0.0, {}, std::move(extracted)}; }
Score plain(double score) { return {score, {}, ""}; }

Score grade_number(const Answer& a) {
  const auto given = last_number(a.response), gold = last_number(a.gold);
  if (!gold) throw UserError("reward.rule number", "the right answer `" + a.gold + "` holds no number", "expected a number");
  return verdict(given && same_number(*given, *gold), given.value_or(""));
}

Score grade_math(const Answer& a) {
  const auto given = final_answer(a.response);
  return verdict(given && same_answer(*given, a.gold), given.value_or(""));
}

Score grade_graded_math(const Answer& a) {
  Score score = grade_math(a);
  const bool right = score.score > 0;
  const double format = right ? tag_score(a.response) : 0, steps = right && shows_steps(a.response) ? 0.1 : 0;
  score.score = right ? 0.7 + format + steps : 0;
  score.parts = {{"graded_math", score.score},
                 {"graded_math/answer", right ? 0.7 : 0.0},
                 {"graded_math/format", format},
                 {"graded_math/steps", steps}};
  return score;
}

Score grade_hendrycks(const Answer& a) {
  const auto given = boxed_answer(a.response);
  const std::string answer = given.value_or(a.response);
  return verdict(hendrycks_equal(answer, boxed_answer(a.gold).value_or(a.gold)), answer);
}

Score grade_deepscaler(const Answer& a) {
  const auto given = deepscaler_answer(a.response);
  const std::string gold = a.gold.find("\\boxed") == std::string::npos ? a.gold : boxed_answer(a.gold).value_or("");
  return verdict(given && !gold.empty() && mathd_or_symbolic_equal(*given, gold), given.value_or(""));
}

// A letter, the text of a choice, or, where the choices are given and none reads so, its index from 0.
// The texts of A, B, ...: given with the answer, or a column of its row.
std::vector<std::string> choices_of(const Answer& a, const std::string& column) {
  if (!a.choices.empty() || a.columns.empty()) return a.choices;
  const nlohmann::json given = column_of(a, column);
  if (given.is_null()) return {};
  const auto is_text = [](const nlohmann::json& choice) { return choice.is_string(); };
  if (!given.is_array() || given.size() > 10 || !std::all_of(given.begin(), given.end(), is_text))
    throw UserError("reward.choices_column", "`" + column + "` is " + given.dump().substr(0, 40),
                    "expected at most 10 texts, those of A, B, ...");
  return given.get<std::vector<std::string>>();
}

ChoiceGold right_choice(const Answer& a, const std::vector<std::string>& choices) {
  const ChoiceGold named = choice_gold(a.gold, choices);
  const std::string gold = trimmed(a.gold);
  const bool is_index = gold.size() == 1 && gold[0] >= '0' && gold[0] <= '9' && !choices.empty();
  return named.letter || !is_index ? named : choice_gold_at(gold[0] - '0', choices);
}

Function choice_rule(const Options& o) {
  return [column = o.choices_column](const Answer& a) {
    const auto letter = choice_letter(a.response, "ABCDEFGHIJ");
    return Score{choice_score(a.response, right_choice(a, choices_of(a, column))), {}, letter ? std::string(1, *letter) : ""};
  };
}

Function json_rule(const Options& o) {
  if (o.schema.empty()) return [](const Answer& a) { return verdict(nlohmann::json::accept(trimmed(a.response)), ""); };
  return [schema = std::make_shared<JsonSchema>(o.schema)](const Answer& a) {  // shared: std::function must be copyable
    const nlohmann::json value = parse_or_discard<nlohmann::json>(trimmed(a.response));
    return verdict(!value.is_discarded() && schema->accepts(value), "");
  };
}

Function regex_rule(const Options& o) {
  if (o.pattern.empty())
    return [](const Answer& a) { return verdict(text::Regex(a.gold, "the pattern in gold").found_in(a.response), ""); };
  auto pattern = std::make_shared<text::Regex>(o.pattern, "reward.pattern");  // shared: std::function must be copyable
  return [pattern](const Answer& a) { return verdict(pattern->found_in(a.response), ""); };
}

Function gsm8k_rule(const Options& o) {
  return [flexible = o.method == "flexible"](const Answer& a) {
    const auto given = gsm8k_answer(a.response, flexible);
    return verdict(given && *given == a.gold, given.value_or(""));
  };
}

Function dapo_rule(const Options& o) {
  const DapoStyle style{o.strict_box, o.integer_gold, o.integer_gold};
  return [style](const Answer& a) {
    const DapoResult result = dapo_grade(a.response, a.gold, style);
    return Score{result.right ? 1.0 : -1.0, {}, result.answer.value_or("")};
  };
}

Function cosine_rule(const Options& o) {
  const CosineRange range{o.cosine_min_wrong, o.cosine_max_wrong, o.cosine_min_right, o.cosine_max_right, o.max_tokens};
  return [range](const Answer& a) {
    Score score = grade_math(a);
    score.score = cosine_score(score.score > 0, a.response_tokens, range);
    return score;
  };
}

struct Entry {
  const char* name;
  std::function<Function(const Options&)> make;
  bool needs_gold = true;
  bool reads_columns = false;
};

const std::vector<Entry>& table() {
  static const std::vector<Entry> entries = {
      {"exact",
       [](const Options&) -> Function {
         return [](const Answer& a) { return verdict(trimmed(a.response) == trimmed(a.gold), trimmed(a.response)); };
       }},
      {"regex", regex_rule},
      {"number", [](const Options&) -> Function { return grade_number; }},
      {"json", json_rule, false},
      {"gsm8k", gsm8k_rule},
      {"math", [](const Options&) -> Function { return grade_math; }},
      {"graded_math", [](const Options&) -> Function { return grade_graded_math; }},
      {"hendrycks", [](const Options&) -> Function { return grade_hendrycks; }},
      {"dapo", dapo_rule},
      {"dapo_slime",
       [](const Options& o) -> Function {
         Options slime = o;
         slime.integer_gold = true;
         return dapo_rule(slime);
       }},
      {"deepscaler", [](const Options&) -> Function { return grade_deepscaler; }},
      {"choice", choice_rule, true, true},
      {"f1",
       [](const Options&) -> Function {
         return [](const Answer& a) {
           const F1 f1 = f1_score(a.response, a.gold);
           return Score{f1.f1, {{"f1", f1.f1}, {"f1/precision", f1.precision}, {"f1/recall", f1.recall}}, ""};
         };
       }},
      {"think_format",
       [](const Options&) -> Function { return [](const Answer& a) { return verdict(has_think_format(a.response), ""); }; },
       false},
      {"cosine", cosine_rule},
      {"repetition",
       [](const Options& o) -> Function {
         return [n = o.repetition_ngram, p = o.repetition_penalty](const Answer& a) {
           return plain(repetition_penalty(words_as_items(a.response), n, p));
         };
       },
       false},
      {"overlong",
       [](const Options& o) -> Function {
         return [limit = o.max_tokens, cache = o.overlong_cache](const Answer& a) {
           return plain(overlong_penalty(a.response_tokens, limit, cache));
         };
       },
       false}};
  return entries;
}

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

class WeightedSum : public Rule {
 public:
  struct Part {
    std::unique_ptr<Rule> rule;
    double weight;
  };
  explicit WeightedSum(std::vector<Part> parts) : parts_(std::move(parts)) {}
  const std::string& name() const override { return name_; }
  Score score(const Answer& answer) const override { return score_batch({&answer, 1}).front(); }
  std::vector<Score> score_batch(std::span<const Answer> answers) const override {
    std::vector<Score> sums(answers.size());
    for (const Part& part : parts_) {
      std::vector<Score> ones = part.rule->score_batch(answers);
      for (size_t i = 0; i < sums.size(); ++i) add(sums[i], std::move(ones[i]), part.weight);
    }
    return sums;
  }
  bool needs_gold() const override {
    return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.rule->needs_gold(); });
  }
  bool reads_columns() const override {
    return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.rule->reads_columns(); });
  }
  void abandon() const noexcept override {
    for (const Part& part : parts_) part.rule->abandon();
  }

 private:
  static void add(Score& sum, Score&& one, double weight) {
    sum.score += weight * one.score;
    sum.parts.insert(sum.parts.end(), one.parts.begin(), one.parts.end());
    if (sum.extracted.empty()) sum.extracted = std::move(one.extracted);
  }

  std::vector<Part> parts_;
  std::string name_ = "rules";
};

// Rules that are more than a function of one answer, made once per reward.
using Worker = std::pair<const char*, std::unique_ptr<Rule> (*)(const Options&)>;
constexpr Worker kWorkers[] = {
    {"length", length_rule}, {"math_verify", math_verify_rule}, {"python", python_rule}, {"code", code_rule}, {"http", http_rule}};
constexpr const char* kModel = "model";

}  // namespace

std::vector<Score> Rule::score_batch(std::span<const Answer> answers) const {
  std::vector<Score> scores;
  for (const Answer& answer : answers) scores.push_back(score(answer));
  return scores;
}

Score FunctionRule::score(const Answer& answer) const {
  Score score = function_(answer);
  if (score.parts.empty()) score.parts = {{name_, score.score}};
  return score;
}

std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const Entry& entry : table()) names.emplace_back(entry.name);
  for (const Worker& worker : kWorkers) names.emplace_back(worker.first);
  names.emplace_back(kModel);
  return names;
}

namespace {

std::unique_ptr<Rule> make_plain(const Spec& spec, const Options& options) {
  for (const Entry& entry : table()) {
    if (spec.name != entry.name) continue;
    // Rules work on characters: ill-formed bytes of a response cut in a character become U+FFFD first.
    const auto on_characters = [function = entry.make(options)](const Answer& answer) {
      if (text::is_utf8(answer.response) && text::is_utf8(answer.gold)) return function(answer);
      Answer repaired = answer;
      repaired.response = text::repair_utf8(answer.response);
      repaired.gold = text::repair_utf8(answer.gold);
      return function(repaired);
    };
    const bool has_pattern = spec.name == "regex" && !options.pattern.empty();
    const FunctionRule::Needs needs{entry.needs_gold && !has_pattern, entry.reads_columns};
    return std::make_unique<FunctionRule>(entry.name, on_characters, needs);
  }
  throw UserError("reward.rule", "there is no rule `" + spec.name + "`", "the nearest is `" + nearest_name(spec.name, rule_names()) + "`");
}

}  // namespace

std::unique_ptr<Rule> make_rule(const std::string& text, const Options& base, const ModelRuleMaker& model) {
  const Spec spec = parse_spec(text);
  Options options = base;
  OptionList list;
  describe(list, options);
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
  if (spec.name == "math" && options.fallback == "math_verify")
    return math_with_fallback(make_plain(spec, options), math_verify_rule(options));
  return make_plain(spec, options);
}

std::string rule_of(const Options& options) {
  if (!options.rule.empty()) return options.rule;
  if ((!options.python.empty()) + (!options.url.empty()) + (!options.model.empty()) > 1)
    throw UserError("reward", "names more than one of python, url and model, and no rule",
                    "reward.rule, or all of them in reward.rules, such as [python=1, model=0.1]");
  return !options.python.empty() ? "python" : !options.url.empty() ? "http" : !options.model.empty() ? kModel : "exact";
}

namespace {

std::unique_ptr<Rule> weighted_sum(const Options& options, const ModelRuleMaker& model) {
  std::vector<WeightedSum::Part> parts;
  for (const std::string& item : options.rules) {
    const size_t bracket = item.rfind(')'), equals = item.find('=', bracket == std::string::npos ? 0 : bracket);
    double weight = 1.0;
    if (equals != std::string::npos) {
      char* end = nullptr;
      const std::string number = trimmed(item.substr(equals + 1));
      weight = std::strtod(number.c_str(), &end);
      if (number.empty() || *end != '\0')
        throw UserError("reward.rules", "`" + item + "` has weight `" + number + "`", "expected a number, such as number=1.0");
    }
    parts.push_back({make_rule(trimmed(item.substr(0, equals)), options, model), weight});
  }
  return std::make_unique<WeightedSum>(std::move(parts));
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
