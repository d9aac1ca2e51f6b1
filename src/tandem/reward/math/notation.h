// SPDX-License-Identifier: Apache-2.0
#pragma once
// One notation for what people and LaTeX write in many, and where its parts begin and end.

#include <string>
#include <string_view>
#include <vector>

namespace tandem::reward {

constexpr std::string_view kRowBreak = "\x01";  // stands for a double backslash, whose second half would look like a command

/// An answer without marks of layout, units and thousands separators, lists with commas, relations as signs of relation.h.
std::string normal(std::string_view answer);

/// Without a unit at its end; 12,345 as 12345 outside brackets.
std::string without_units(std::string text);
std::string without_thousands(const std::string& text);

std::vector<std::string> split_outside_brackets(const std::string& text, std::string_view separator);

struct Bracketed {
  char open = 0, close = 0;
  std::string inner;
};
/// The whole text in one pair of brackets, else open = 0; sets keep `\{`.
Bracketed bracketed(const std::string& text);

}  // namespace tandem::reward
