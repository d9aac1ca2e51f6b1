// SPDX-License-Identifier: Apache-2.0
#pragma once
// The `math` rule: the final answer of a solution, compared with the right one by what it means.
//
// Numbers may stand in any notation (0.5, 1/2, \frac12, 50\%, 1,000, 1.5e3). Expressions compare by value (math_expr.h), tuples and
// intervals by place, sets and lists of solutions in any order. `x = 5` is 5. A unit may be left out; words that carry meaning, such
// as `remainder`, `if`, `p.m.` and `million`, may not (words.h). docs/rewards.md says for users what counts.

#include <optional>
#include <string>
#include <string_view>

namespace tandem::reward {

/// What the last box of a text holds, whatever follows it. Several that follow each other, as in \boxed{1} and \boxed{2}, are a list,
/// without those that repeat. An empty box is passed over. "" if the last one is never closed: the response was cut in its answer.
std::optional<std::string> boxed_answers(std::string_view text);
/// boxed_answers, and nothing where that is ""; else what `<answer>` holds; else what follows the last "answer is", "answer:"
/// or "####"; else the last formula; else the result of an equation in the last line; else the last number. Amounts of money, as in
/// `$5 and $6`, are numbers.
std::optional<std::string> final_answer(std::string_view response);
bool same_answer(std::string_view given, std::string_view gold);
/// True if both are single expressions or equations that were read, so that `same_answer` settles the matter.
bool can_compare(std::string_view given, std::string_view gold);
/// True if an answer can be read as mathematics rather than prose.
bool is_mathematical(std::string_view answer);

}  // namespace tandem::reward
