// SPDX-License-Identifier: Apache-2.0
// Suite `grader`: one reference per file, each with functions of its own; the table maps them to reward/graders.h.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "tandem/base/error.h"
#include "oracle/suites.h"
#include "tandem/reward/graders.h"
#include "tandem/reward/math/hendrycks.h"
#include "tandem/reward/math/math_answer.h"
#include "tandem/reward/rule.h"

namespace tandem::cli {

using nlohmann::json;
using namespace tandem::reward;

namespace {

json or_null(const std::optional<std::string>& text) { return text ? json(*text) : json(); }

struct Skip {
  std::string why;
};

json slime_math(const json& row) {
  const std::string fn = row.at("fn");
  const json& args = row.at("args");
  if (args[0].is_null()) return nullptr;
  const std::string a = args[0], b = args.size() > 1 ? args[1].get<std::string>() : "";
  if (fn == "last_boxed_only_string") return or_null(last_boxed(a));
  if (fn == "remove_boxed") return or_null(inside_box(a));
  if (fn == "extract_boxed_answer" || fn == "extract_answer") return or_null(boxed_answer(a));
  if (fn == "_strip_string") return hendrycks_normal(a);
  if (fn == "mathd_normalize_answer") return mathd_normal(a);
  if (fn == "grade_answer_mathd") return mathd_normal(a) == mathd_normal(b);
  if (fn == "grade_answer_sympy") return symbolic_equal(a, b);
  if (fn == "grade_answer_verl") {
    const auto given = boxed_answer(a);
    const auto gold = b.find("\\boxed") == std::string::npos ? std::optional(b) : boxed_answer(b);
    return given && gold && !gold->empty() && mathd_or_symbolic_equal(*given, *gold);
  }
  throw Skip{"function " + fn};
}

json dapo_record(const DapoResult& result) {
  return {{"score", result.right ? 1.0 : -1.0}, {"acc", result.right}, {"pred", or_null(result.answer)}};
}

// MindSpeed's fourth argument: four places, the box being looked for from 100 characters before the last one.
int64_t box_from(const json& args, const json& kwargs) {
  const json places = args.size() > 2 ? args[2] : kwargs.value("pause_tokens_index", json());
  if (places.is_null()) return -1;
  if (!places.is_array() || places.size() != 4) throw UserError("pause_tokens_index", places.dump(), "expected four places");
  return std::max<int64_t>(0, places.back().get<int64_t>() - 100);
}

json dapo(const json& row, bool slime) {
  const std::string fn = row.at("fn");
  const json& args = row.at("args");
  const json kwargs = row.value("kwargs", json::object());
  const std::string a = args[0], b = args.size() > 1 ? args[1].get<std::string>() : "";
  const DapoStyle style{kwargs.value("strict_box_verify", false), slime, slime, box_from(args, kwargs)};
  if (fn == "last_boxed_only_string") return or_null(dapo_last_boxed(a));
  if (fn == "remove_boxed") {
    const auto inside = inside_box(a);
    if (!inside) throw UserError("remove_boxed", "no box", "expected \\boxed{...}");
    return *inside;
  }
  if (fn == "normalize_final_answer") return dapo_normal(a, slime);
  if (fn == "is_correct_strict_box") {
    const DapoResult result = dapo_grade(a, b, {true, slime, slime, style.box_from});
    return json::array({result.right ? 1 : -1, or_null(result.answer)});
  }
  if (fn == "is_correct_minerva") {
    const DapoResult result = dapo_minerva(a, b, style, kwargs.value("answer_pattern", ""));
    return json::array({result.right, or_null(result.answer)});
  }
  if (fn == "verify") {
    const DapoResult result = style.strict_box ? dapo_grade(a, b, style) : dapo_minerva(a, b, style, "");
    return json::array({result.right, or_null(result.answer)});
  }
  if (fn == "compute_score") return slime ? dapo_record(dapo_grade(a, b, style)) : json(dapo_grade(a, b, style).right ? 1.0 : -1.0);
  throw Skip{"function " + fn};
}

json gpqa(const json& row) {
  const json& response = row.at("response");
  const std::string fn = row.at("fn");
  if (fn == "extract_letter") {
    std::string letters;
    for (const std::string letter : row.at("valid_letters")) letters += letter;
    const auto letter = response.is_null() ? std::nullopt : choice_letter(response.get<std::string>(), letters);
    return letter ? json(std::string(1, *letter)) : json();
  }
  if (response.is_null()) return 0.0;
  std::vector<std::string> choices;
  const json metadata = row.value("metadata", json::object());
  const json& gold = row.at("gold");
  if (metadata.is_object() && metadata.contains("choices"))
    for (const auto& [key, text] : metadata["choices"].items()) choices.push_back(text);
  ChoiceGold right;
  if (metadata.is_object() && metadata.contains("correct_letter"))
    right = choice_gold(metadata["correct_letter"].get<std::string>(), {});
  else if (gold.is_number_integer())
    right = choice_gold_at(gold.get<int64_t>(), choices);
  else
    right = choice_gold(gold.get<std::string>(), choices);
  return choice_score(response.get<std::string>(), right, choices);
}

json f1(const json& row) {
  if (row.at("fn") == "normalize") return f1_normal(row.at("text").get<std::string>());
  if (row.at("response").is_null()) return json::array({0, 0, 0});
  const F1 score = f1_score(row.at("response").get<std::string>(), row.at("gold").get<std::string>());
  return json::array({score.f1, score.precision, score.recall});
}

json deepscaler(const json& row) {
  const json& gold = row.at("gold");
  const auto rule = make_rule("deepscaler");
  return static_cast<int>(rule->score({row.at("response"), gold.is_string() ? gold.get<std::string>() : gold.dump()}).score);
}

// Math-Verify's accuracy with boxed answers, here by our own comparison.
json accuracy(const std::string& completion, const std::string& gold) {
  if (!is_mathematical(gold)) return nullptr;
  const auto given = boxed_answer(completion);
  return given && same_answer(*given, gold) ? 1.0 : 0.0;
}

json trl_one(const json& row, size_t i, const json& config) {
  const std::string fn = row.at("fn");
  const int64_t length = row.contains("completion_lengths") ? row["completion_lengths"][i].get<int64_t>() : 0;
  if (fn == "soft_overlong_punishment") return overlong_penalty(length, config.at("max_completion_len"), config.at("soft_punish_cache"));
  if (fn == "repetition_penalty_reward")
    return repetition_penalty(row.at("completion_ids")[i].get<std::vector<int64_t>>(), config.at("ngram_size"), config.at("max_penalty"));
  const std::string completion = row.at("completions")[i];
  if (fn == "think_format_reward") return has_think_format(completion) ? 1.0 : 0.0;
  const std::string gold = row.at("gold")[i];
  if (fn == "accuracy_reward") return accuracy(completion, gold);
  if (fn == "reasoning_accuracy_reward") {
    const auto delimiters = row.value("kwargs", json::object()).value("reasoning_delimiters", std::vector<std::string>{"</think>"});
    const size_t at = completion.rfind(delimiters[0]);
    if (!is_mathematical(gold)) return nullptr;
    return at == std::string::npos ? json(0.0) : accuracy(completion.substr(at + delimiters[0].size()), gold);
  }
  if (fn == "cosine_scaled_reward") {
    const json right = accuracy(completion, gold);
    if (right.is_null()) return nullptr;
    return cosine_score(right == 1.0, length,
                        {config.at("min_value_wrong"), config.at("max_value_wrong"), config.at("min_value_correct"),
                         config.at("max_value_correct"), config.at("max_len")});
  }
  throw Skip{"function " + fn};
}

json trl(const json& row) {
  json scores = json::array();
  for (size_t i = 0; i < row.at("expected").size(); ++i) scores.push_back(trl_one(row, i, row.value("config", json::object())));
  return scores;
}

json verl_gsm8k(const json& row) {
  const auto answer = gsm8k_answer(row.at("response").get<std::string>(), row.at("method") == "flexible");
  return json::array({or_null(answer), answer && *answer == row.at("gold") ? 1.0 : 0.0});
}

json hendrycks(const json& row) { return hendrycks_equal(row.at("prediction").get<std::string>(), row.at("gold").get<std::string>()); }

json verl_dapo(const json& row) {
  return dapo_record(dapo_grade(row.at("response").get<std::string>(), row.at("gold").get<std::string>(),
                                {row.at("strict_box_verify"), false, false}));
}

std::string reduced_to_list_or_number(const std::string& text) {
  const size_t open = text.rfind('['), close = text.rfind(']');
  if (open != std::string::npos && close != std::string::npos && open < close) return text.substr(open + 1, close - open - 1);
  return last_number(text).value_or("");
}

json areal(const json& row) {
  static const std::unique_ptr<Rule> rule = make_rule("math_verify");
  const json& gold = row.at("gold");
  std::string response = row.at("response"), right = gold.is_string() ? gold.get<std::string>() : gold.dump();
  if (row.at("fn") == "geometry3k") {
    response = reduced_to_list_or_number(response);
    right = reduced_to_list_or_number(right);
  }
  return response.empty() || right.empty() ? 0 : static_cast<int>(rule->score({response, right}).score);
}

bool near(const json& a, const json& b) {
  if (a.is_number() && b.is_number()) return std::fabs(a.get<double>() - b.get<double>()) <= 1e-12;
  if (!a.is_array() || !b.is_array() || a.size() != b.size()) return a == b;
  for (size_t i = 0; i < a.size(); ++i)
    if (!near(a[i], b[i])) return false;
  return true;
}

using Grade = std::function<json(const json&)>;

const std::map<std::string, Grade>& graders() {
  static const std::map<std::string, Grade> all = {{"slime_math", slime_math},
                                                   {"slime_dapo", [](const json& row) { return dapo(row, true); }},
                                                   {"mindspeed_dapo", [](const json& row) { return dapo(row, false); }},
                                                   {"verl_math_dapo", verl_dapo},
                                                   {"verl_gsm8k", verl_gsm8k},
                                                   {"slime_deepscaler", deepscaler},
                                                   {"slime_gpqa", gpqa},
                                                   {"slime_f1", f1},
                                                   {"hendrycks_is_equiv", hendrycks},
                                                   {"hendrycks_is_equiv_generated", hendrycks},
                                                   {"trl_rewards", trl},
                                                   {"areal_math_verify", areal}};
  return all;
}

}  // namespace

void run_grader(const std::string& file, const OracleOptions&, Report& report) {
  const std::string stem = std::filesystem::path(file).stem().string();
  const auto grader = graders().find(stem);
  int64_t number = 0;
  for (const json& row : oracle_rows(file)) {
    const std::string name = stem + ":" + std::to_string(++number) + (row.contains("fn") ? " " + row["fn"].get<std::string>() : "");
    if (grader == graders().end()) {
      report.skip(name, "no rule of this name");
      continue;
    }
    const bool must_throw = row.contains("expected_error");
    try {
      const json actual = grader->second(row);
      const json expected = must_throw                  ? json("an error")
                            : row.contains("extracted") ? json::array({row["extracted"], row["expected"]})
                                                        : row.at("expected");
      if (!must_throw && near(actual, expected))
        report.pass();
      else
        report.fail(name, "got " + actual.dump() + ", expected " + expected.dump() + " for " + row.dump().substr(0, 300));
    } catch (const Skip& skip) {
      report.skip(name, skip.why);
    } catch (const UserError& e) {
      if (must_throw)
        report.pass();
      else
        report.fail(name, e.what());
    }
  }
}

}  // namespace tandem::cli
