// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tests of a programming problem, as data sets write them, and what a program's output must be to pass them.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::reward {

/// One run of the program. With `function`, its result is compared with `expected`. With `asserts`, they must raise nothing. Else the
/// program's output is compared with `expected`, a text.
struct CodeTest {
  std::string input;
  std::string function;
  nlohmann::ordered_json arguments;   ///< of the function, a list; parse_exact() made it
  std::string asserts;
  nlohmann::ordered_json expected;
};

/// Tests from a right answer, one of
///   {"inputs": [...], "outputs": [...]}                    standard input and output (APPS, TACO, verl)
///   {"inputs": [...], "outputs": [...], "fn_name": "f"}    calls of f, or of Solution().f (APPS, LiveCodeBench)
///   [{"input":, "output":}, ...]                           the same, case by case; with "testtype": "functional" and a name
///                                                          under "metadata" calls (LiveCodeBench)
///   ["assert f(1) == 2", ...] or {"assert_case": [...]}    statements (MBPP, verl)
///   any other text                                         Python that raises if the program is wrong (HumanEval)
/// Errors: UserError where it is none of these or holds no test.
std::vector<CodeTest> code_tests(const std::string& gold);

/// The last block fenced as ```python, else the last fenced block; nullopt without one.
std::optional<std::string> code_block(std::string_view response);

/// Equal line by line; blanks at the ends of lines and empty lines at the end do not count. Numbers with a point may differ by 1e-6.
bool same_output(std::string_view given, std::string_view expected);
/// JSON of parse_exact(): integers of any length are exact, numbers with a point within 1e-6. A list of one `expected` may stand for
/// what it holds, as APPS writes it.
bool same_result(const nlohmann::ordered_json& given, const nlohmann::ordered_json& expected);

}  // namespace tandem::reward
