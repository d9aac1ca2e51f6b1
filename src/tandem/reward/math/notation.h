// SPDX-License-Identifier: Apache-2.0
#pragma once
// One notation for what people and LaTeX write in many, and where its parts begin and end.

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/text/regex.h"

namespace tandem::reward {

inline bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)); }
inline bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)); }
inline bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// A table of words. It is looked through from its beginning.
template <class Value>
using Row = std::pair<std::string_view, Value>;
template <class Value, size_t count>
const Value* value_of(const Row<Value> (&table)[count], std::string_view word) {
  const auto row = std::ranges::find(table, word, &Row<Value>::first);
  return row == std::end(table) ? nullptr : &row->second;
}

constexpr std::string_view kRowBreak = "\x01";  // stands for a double backslash, whose second half would look like a command
constexpr char kWord = '\x05';                  // before each word that stood in \text or its like, so that it is no product of variables
constexpr char kMoney = '\x06';                 // a dollar sign that means money
constexpr char kDegree = '\x07';                // behind an angle in degrees

using text::TrustedRegex;

/// An answer without marks of layout and thousands separators, lists with commas, relations as signs of relation.h.
std::string normal(std::string_view answer);

/// Every match of `pattern` as `by`, and its first group behind that if it has one.
std::string substituted(const text::Regex& pattern, const std::string& text, std::string_view by);

/// 12,345 as 12345 outside brackets.
std::string without_thousands(const std::string& text);

/// A separator that ends in a letter of a command, such as `\in`, is none within a longer one, such as `\int`.
std::vector<std::string> split_outside_brackets(const std::string& text, std::string_view separator);

/// Where the group that begins at `open` ends: behind its brace; npos if it does not.
size_t group_end(std::string_view text, size_t open);

struct Bracketed {
  char open = 0, close = 0;
  std::string inner;
};
/// The whole text in one pair of brackets, else open = 0; sets keep `\{`.
Bracketed bracketed(const std::string& text);

}  // namespace tandem::reward
