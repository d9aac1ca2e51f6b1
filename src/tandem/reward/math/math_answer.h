// SPDX-License-Identifier: Apache-2.0
#pragma once
// The `math` rule: the final answer of a solution, compared with the right one by what it means.
//
// Numbers may stand in any notation (0.5, 1/2, \frac12, 50\%, 1,000). Expressions compare by value (math_expr.h), tuples and
// intervals by place, sets and lists of solutions in any order. `x = 5` is 5. Units, degrees and text around a number are ignored.

#include <optional>
#include <string>
#include <string_view>

namespace tandem::reward {

/// What the last box of a text holds. Several that follow each other, as in \boxed{1} and \boxed{2}, are a list.
std::optional<std::string> boxed_answers(std::string_view text);
/// boxed_answers; else what `<answer>` holds; else what follows the last "answer is", "answer:" or "####"; else the last formula;
/// else the result of an equation in the last line; else the last number. Amounts of money, as in `$5 and $6`, are numbers.
std::optional<std::string> final_answer(std::string_view response);
bool same_answer(std::string_view given, std::string_view gold);
/// True if both are single expressions or equations that were read, so that `same_answer` settles the matter.
bool can_compare(std::string_view given, std::string_view gold);
/// True if an answer can be read as mathematics rather than prose.
bool is_mathematical(std::string_view answer);

}  // namespace tandem::reward
