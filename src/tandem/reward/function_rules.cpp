// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/function_rules.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/json_depth.h"
#include "tandem/base/strings.h"
#include "tandem/reward/batch.h"
#include "tandem/reward/graders.h"
#include "tandem/reward/json_schema.h"
#include "tandem/reward/math/hendrycks.h"
#include "tandem/reward/math/math_answer.h"
#include "tandem/reward/rule.h"
#include "tandem/text/regex.h"
#include "tandem/text/unicode.h"

namespace tandem::reward {
namespace {

using Function = std::function<Score(const Answer&)>;

Score verdict(bool right, std::string extracted) { return {right ? 1.0 : 0.0, {}, std::move(extracted)}; }
Score plain(double score) { return {score, {}, ""}; }

Score grade_exact(const Answer& a) { return verdict(trimmed(a.response) == trimmed(a.gold), trimmed(a.response)); }

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

Score grade_f1(const Answer& a) {
  const F1 f1 = f1_score(a.response, a.gold);
  return {f1.f1, {{"f1", f1.f1}, {"f1/precision", f1.precision}, {"f1/recall", f1.recall}}, ""};
}

Score grade_think_format(const Answer& a) { return verdict(has_think_format(a.response), ""); }

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

// The gold is a letter or the text of a choice. Where choices are given and none reads so, it may be an index from 0.
ChoiceGold right_choice(const Answer& a, const std::vector<std::string>& choices) {
  const ChoiceGold named = choice_gold(a.gold, choices);
  const std::string gold = trimmed(a.gold);
  const bool is_index = gold.size() == 1 && gold[0] >= '0' && gold[0] <= '9' && !choices.empty();
  return named.letter || !is_index ? named : choice_gold_at(gold[0] - '0', choices);
}

Function choice_rule(const FunctionOptions& o) {
  return [column = o.choices_column](const Answer& a) {
    const std::vector<std::string> choices = choices_of(a, column);
    const auto letter = choice_letter(a.response, letters_of(choices));
    return Score{choice_score(a.response, right_choice(a, choices), choices), {}, letter ? std::string(1, *letter) : ""};
  };
}

Function json_rule(const FunctionOptions& o) {
  if (o.schema.empty()) return [](const Answer& a) { return verdict(nlohmann::json::accept(trimmed(a.response)), ""); };
  return [schema = std::make_shared<JsonSchema>(o.schema)](const Answer& a) {  // shared: std::function must be copyable
    const nlohmann::json value = parse_or_discard<nlohmann::json>(trimmed(a.response));
    return verdict(!value.is_discarded() && schema->accepts(value), "");
  };
}

Function regex_rule(const FunctionOptions& o) {
  if (o.pattern.empty())
    return [](const Answer& a) { return verdict(text::Regex(a.gold, "the pattern in gold").found_in(a.response), ""); };
  auto pattern = std::make_shared<text::Regex>(o.pattern, "reward.pattern");  // shared: std::function must be copyable
  return [pattern](const Answer& a) { return verdict(pattern->found_in(a.response), ""); };
}

Function gsm8k_rule(const FunctionOptions& o) {
  return [flexible = o.method == "flexible"](const Answer& a) {
    const auto given = gsm8k_answer(a.response, flexible);
    return verdict(given && *given == a.gold, given.value_or(""));
  };
}

Function dapo_rule(const FunctionOptions& o, bool integer_gold) {
  const DapoStyle style{o.strict_box, integer_gold, integer_gold};
  return [style](const Answer& a) {
    const DapoResult result = dapo_grade(a.response, a.gold, style);
    return Score{result.right ? 1.0 : -1.0, {}, result.answer.value_or("")};
  };
}

Function cosine_rule(const FunctionOptions& o) {
  const CosineRange range{o.cosine_min_wrong, o.cosine_max_wrong, o.cosine_min_right, o.cosine_max_right, o.full_tokens()};
  return [range](const Answer& a) {
    Score score = grade_math(a);
    score.score = cosine_score(score.score > 0, a.response_tokens, range);
    return score;
  };
}

Function repetition_rule(const FunctionOptions& o) {
  return [n = o.repetition_ngram, p = o.repetition_penalty](const Answer& a) {
    return plain(repetition_penalty(words_as_items(a.response), n, p));
  };
}

Function overlong_rule(const FunctionOptions& o) {
  if (o.overlong_cache > o.full_tokens())
    throw UserError("reward.overlong_cache", join_text("is ", o.overlong_cache, ", the longest answer has ", o.full_tokens(), " tokens"),
                    join_text("at most ", o.full_tokens(), ", or another reward.max_tokens"));
  return [limit = o.full_tokens(), cache = o.overlong_cache](const Answer& a) {
    return plain(overlong_penalty(a.response_tokens, limit, cache));
  };
}

// A rule without options.
template <Score (*grade)(const Answer&)>
Function plainly(const FunctionOptions&) {
  return grade;
}

struct Entry {
  const char* name;
  Function (*make)(const FunctionOptions&);
  bool needs_gold = true;
  bool reads_columns = false;
};
constexpr Entry kRules[] = {{"exact", plainly<grade_exact>},
                            {"regex", regex_rule},
                            {"number", plainly<grade_number>},
                            {"json", json_rule, false},
                            {"gsm8k", gsm8k_rule},
                            {"math", plainly<grade_math>},
                            {"graded_math", plainly<grade_graded_math>},
                            {"hendrycks", plainly<grade_hendrycks>},
                            {"dapo", [](const FunctionOptions& o) { return dapo_rule(o, o.integer_gold); }},
                            {"dapo_slime", [](const FunctionOptions& o) { return dapo_rule(o, true); }},
                            {"deepscaler", plainly<grade_deepscaler>},
                            {"choice", choice_rule, true, true},
                            {"f1", plainly<grade_f1>},
                            {"think_format", plainly<grade_think_format>, false},
                            {"cosine", cosine_rule},
                            {"repetition", repetition_rule, false},
                            {"overlong", overlong_rule, false}};

}  // namespace

void describe(OptionVisitor& field, FunctionOptions& o) {
  field("method", o.method, "gsm8k: strict wants `#### N`, flexible takes the last number.", one_of({"strict", "flexible"}));
  field("pattern", o.pattern, "regex: the pattern to find; empty takes the right answer as the pattern.");
  field("choices_column", o.choices_column,
        "choice: column with the texts of A, B, ... of a row that has them; dots go into it. The right answer may then be a text or an "
        "index, too.");
  field("schema", o.schema, "json: a JSON Schema the answer must keep, as a file or as text; empty: any JSON.");
  field("strict_box", o.strict_box, "dapo: the answer must stand in a box.");
  field("integer_gold", o.integer_gold, "dapo: compare with the right answer as an integer.");
  field("cosine_min_wrong", o.cosine_min_wrong, "cosine: score of a wrong answer of no length.");
  field("cosine_max_wrong", o.cosine_max_wrong, "cosine: score of a wrong answer of full length.");
  field("cosine_min_right", o.cosine_min_right, "cosine: score of a right answer of full length.");
  field("cosine_max_right", o.cosine_max_right, "cosine: score of a right answer of no length.");
  field("max_tokens", o.max_tokens,
        "cosine, overlong: full length of an answer in tokens; 0: the longest response that is asked for, and 1000 in `tandem grade`.",
        at_least(0));
  field("overlong_cache", o.overlong_cache, "overlong: the penalty grows over this many tokens below the full length.", at_least(1));
  field("repetition_ngram", o.repetition_ngram, "repetition: words in an n-gram.", at_least(1));
  field("repetition_penalty", o.repetition_penalty, "repetition: score when everything repeats.");
}

std::vector<std::string> function_rule_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kRules) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<Rule> function_rule(const std::string& name, const FunctionOptions& options) {
  for (const Entry& entry : kRules) {
    if (name != entry.name) continue;
    // Rules work on characters: ill-formed bytes of a response cut in a character become U+FFFD first.
    const auto on_characters = [function = entry.make(options)](const Answer& answer) {
      if (text::is_utf8(answer.response) && text::is_utf8(answer.gold)) return function(answer);
      Answer repaired = answer;
      repaired.response = text::repair_utf8(answer.response);
      repaired.gold = text::repair_utf8(answer.gold);
      return function(repaired);
    };
    const bool has_pattern = name == "regex" && !options.pattern.empty();
    const FunctionRule::Needs needs{entry.needs_gold && !has_pattern, entry.reads_columns};
    return std::make_unique<FunctionRule>(entry.name, on_characters, needs);
  }
  return nullptr;
}

}  // namespace tandem::reward
