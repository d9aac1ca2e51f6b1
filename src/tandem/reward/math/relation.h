// SPDX-License-Identifier: Apache-2.0
#pragma once
// Inequalities and intervals: x > 2, 2 < x <= 5, x \in (2, 5], compared by the solutions they stand for.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::reward {

/// Signs that stand for <, >, <=, >= and not-equal once an answer is normalised.
constexpr char kLess = '<', kGreater = '>', kAtMost = '\x02', kAtLeast = '\x03', kUnequal = '\x04';
/// Writes every notation of these five as those signs.
std::string with_plain_signs(std::string text);

/// Terms with signs between them: one more term than signs.
struct Relation {
  std::vector<std::string> terms;
  std::vector<char> signs;
};
/// nullopt without a sign outside brackets.
std::optional<Relation> read_relation(const std::string& text);

/// Ends of an interval as texts; an end of "" is infinite.
struct Interval {
  std::string low, high;
  bool has_low = false, has_high = false;   ///< the end itself belongs to it
};
/// The values of the unknown that a relation allows, where the unknown stands alone on a side or in the middle.
std::optional<Interval> interval_of(const Relation& relation);

/// One inequality is the other with its sides exchanged or multiplied by a constant.
bool same_inequality(const Relation& a, const Relation& b);

/// A letter, a word, a name such as f(x) or x_1: what a result is assigned to.
bool is_symbol(std::string_view text);

}  // namespace tandem::reward
