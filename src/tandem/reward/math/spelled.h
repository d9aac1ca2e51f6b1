// SPDX-License-Identifier: Apache-2.0
#pragma once
// What people spell out, in signs: five, two thirds, 3rd, base five, no solution.

#include <string>

namespace tandem::reward {

/// Words may carry the mark kWord; numbers come out in digits, as in `2\frac{1}{2}` for "two and a half".
std::string with_spelled_numbers(const std::string& text);

/// Ordinals, remainders, bases and durations in one form; the empty set and infinity by their signs where the text is nothing else.
std::string with_usual_phrases(std::string text);

}  // namespace tandem::reward
