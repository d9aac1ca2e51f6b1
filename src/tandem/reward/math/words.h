// SPDX-License-Identifier: Apache-2.0
#pragma once
// Words in an answer: units, which carry no meaning, and words that do, such as `remainder`, `if`, `p.m.` and `million`.

#include <string>
#include <vector>

namespace tandem::reward {

/// A text as terms with words between them: words[i] stand behind terms[i]. The first and the last term may be empty.
struct Worded {
  std::vector<std::string> terms;
  std::vector<std::vector<std::string>> words;   ///< in lower case, in the singular, by the usual name of a unit
  bool has_words() const { return !words.empty(); }
};
/// Words stand outside brackets. `4 million` is the term 4 times 10^6, `50 percent` is 50%, `3 hours 40 minutes` is 220 minutes.
Worded read_words(const std::string& text);

/// A word that says when something holds, such as `if`: what stands on its sides is read by itself.
bool has_condition(const Worded& text);
/// A number, and behind it words that may be a unit; units that are known by name alone.
bool is_quantity(const Worded& text);
bool has_known_units(const Worded& text);

/// Whether the words of the two mean the same, with terms that agree pairwise. Units may be left out, as a whole; where both have
/// some they agree. factor_a and factor_b: by which the only terms must be multiplied, where the units are of one kind, such as cm and m.
struct WordMatch {
  bool same = false;
  std::string factor_a = "1", factor_b = "1";
};
WordMatch match_words(const Worded& a, const Worded& b);

}  // namespace tandem::reward
