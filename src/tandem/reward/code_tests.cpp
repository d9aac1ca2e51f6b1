// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/code_tests.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "tandem/base/error.h"
#include "tandem/base/input/exact_json.h"
#include "tandem/base/strings.h"
#include "tandem/reward/graders.h"

namespace tandem::reward {

using nlohmann::ordered_json;

namespace {

constexpr const char* kForms = "expected {\"inputs\": [...], \"outputs\": [...]}, a list of asserts, or Python statements";

[[noreturn]] void refuse(const std::string& what) { throw UserError("reward.rule code", "the right answer " + what, kForms); }

std::string lines_of(const ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return exact_text(value);
  std::string text;
  for (const ordered_json& line : value) text += (line.is_string() ? line.get<std::string>() : exact_text(line)) + "\n";
  return text;
}

// A text may hold JSON, one value a line; where it does not, it is the value.
ordered_json arguments_of(const ordered_json& input) {
  if (input.is_array()) return input;
  if (!input.is_string()) return ordered_json::array({input});
  ordered_json arguments = ordered_json::array();
  std::istringstream lines(input.get<std::string>());
  for (std::string line; std::getline(lines, line);) {
    if (trimmed(line).empty()) continue;
    ordered_json value = parse_exact(line).value;
    arguments.push_back(value.is_discarded() ? ordered_json(line) : std::move(value));
  }
  return arguments;
}

ordered_json result_of(const ordered_json& output) {
  if (!output.is_string()) return output;
  ordered_json value = parse_exact(output.get<std::string>()).value;
  return value.is_discarded() ? output : value;
}

CodeTest test_of(const ordered_json& input, const ordered_json& output, const std::string& function) {
  if (function.empty()) return {.input = lines_of(input), .expected = lines_of(output)};
  return {.function = function, .arguments = arguments_of(input), .expected = result_of(output)};
}

std::string function_of(const ordered_json& row) {
  for (const char* name : {"fn_name", "func_name"})
    if (row.contains(name) && row[name].is_string()) return row[name];
  if (!row.contains("metadata")) return "";
  const ordered_json& metadata = row["metadata"];
  return function_of(metadata.is_string() ? parse_exact(metadata.get<std::string>()).value : metadata);
}

void add_object(const ordered_json& gold, std::vector<CodeTest>& tests) {
  if (gold.contains("assert_case")) {
    for (const ordered_json& text : gold["assert_case"]) tests.push_back({.asserts = text.get<std::string>()});
    return;
  }
  if (!gold.contains("inputs") || !gold.contains("outputs")) refuse("is an object without `inputs` and `outputs`");
  const ordered_json &inputs = gold["inputs"], &outputs = gold["outputs"];
  if (!inputs.is_array() || !outputs.is_array() || inputs.size() != outputs.size())
    refuse("does not have as many `outputs` as `inputs`");
  for (size_t i = 0; i < inputs.size(); ++i) tests.push_back(test_of(inputs[i], outputs[i], function_of(gold)));
}

void add_case(const ordered_json& one, std::vector<CodeTest>& tests) {
  if (one.is_string()) {
    tests.push_back({.asserts = one.get<std::string>()});
  } else if (one.is_object() && one.contains("input") && one.contains("output")) {
    const bool calls = one.value("testtype", ordered_json()) == "functional";
    const std::string function = calls ? function_of(one) : "";
    if (calls && function.empty()) refuse("has a functional test without `metadata.func_name`");
    tests.push_back(test_of(one["input"], one["output"], function));
  } else {
    refuse("has the test " + exact_text(one).substr(0, 60));
  }
}

bool has_point(const std::string& text) { return text.find_first_of(".eE") != std::string::npos; }

bool near(double a, double b) { return std::isfinite(a) && std::isfinite(b) && std::fabs(a - b) <= 1e-6 * std::max(1.0, std::fabs(b)); }

bool same_word(const std::string& given, const std::string& expected) {
  if (given == expected) return true;
  if (!has_point(given) && !has_point(expected)) return false;
  const auto a = decimal_value(given), b = decimal_value(expected);
  return a && b && near(*a, *b);
}

std::vector<std::string> lines_without_ends(std::string_view text) {
  std::vector<std::string> lines;
  for (const std::string_view line : split(text, '\n')) lines.emplace_back(line.substr(0, line.find_last_not_of(" \t\r") + 1));
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

bool same_line(const std::string& given, const std::string& expected) {
  if (given == expected) return true;
  std::istringstream a(given), b(expected);
  std::string x, y;
  while (b >> y)
    if (!(a >> x) || !same_word(x, y)) return false;
  return !(a >> x);
}

bool same_value(const ordered_json& given, const ordered_json& expected) {
  const auto is_number = [](const ordered_json& value) { return value.is_number() || is_long_number(value); };
  if (is_number(given) && is_number(expected)) return same_word(exact_text(given), exact_text(expected));
  if (given.is_object() && expected.is_object())
    return given.size() == expected.size() && std::ranges::all_of(expected.items(), [&](const auto& item) {
             return given.contains(item.key()) && same_value(given[item.key()], item.value());
           });
  if (!given.is_array()) return given == expected;
  return expected.is_array() && given.size() == expected.size() &&
         std::equal(given.begin(), given.end(), expected.begin(), same_value);
}

}  // namespace

std::vector<CodeTest> code_tests(const std::string& gold) {
  std::vector<CodeTest> tests;
  const auto [parsed, wrong] = parse_exact(gold);
  if (wrong.starts_with("holds")) refuse(wrong);  // a number that is none
  try {
    if (parsed.is_object()) add_object(parsed, tests);
    else if (parsed.is_array()) for (const ordered_json& one : parsed) add_case(one, tests);
    else if (parsed.is_string()) tests.push_back({.asserts = parsed.get<std::string>()});
    else if (parsed.is_discarded() && !trimmed(gold).empty()) tests.push_back({.asserts = gold});
  } catch (const ordered_json::exception&) {
    refuse("is of another form: " + gold.substr(0, 60));
  }
  if (tests.empty()) refuse("holds no test");
  return tests;
}

std::optional<std::string> code_block(std::string_view response) {
  for (const std::string_view fence : {"```python", "```"}) {
    size_t begin = std::string_view::npos;
    std::optional<std::string> last;
    // Fences come in pairs: what opens a block is every other one.
    for (size_t at = 0; (begin = response.find(fence, at)) != std::string_view::npos;) {
      const size_t line = response.find('\n', begin + fence.size());
      if (line == std::string_view::npos) break;
      const size_t end = response.find("```", line);
      if (end == std::string_view::npos) break;
      last = response.substr(line + 1, end - line - 1);
      at = end + 3;
    }
    if (last) return last;
  }
  return std::nullopt;
}

bool same_output(std::string_view given, std::string_view expected) {
  const std::vector<std::string> a = lines_without_ends(given), b = lines_without_ends(expected);
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), same_line);
}

bool same_result(const ordered_json& given, const ordered_json& expected) {
  if (same_value(given, expected)) return true;
  return expected.is_array() && expected.size() == 1 && same_value(given, expected.front());
}

}  // namespace tandem::reward
