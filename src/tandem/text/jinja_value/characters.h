// SPDX-License-Identifier: Apache-2.0
#pragma once
// Characters of well-formed UTF-8, by the rules of Python's str. Pure functions, linear in the text.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::text::jinja {

/// Each a part of `text`.
std::vector<std::string_view> characters_of(std::string_view text);
int64_t num_characters(std::string_view text);

/// White space as str.isspace() knows it.
bool is_space(char32_t c);
bool is_space(std::string_view text);  ///< true of every character, and there is one
bool is_alphabetic(char32_t c);
bool is_digit(char32_t c);
/// What repr() writes as it is.
bool is_printable(char32_t c);
char32_t code_point(std::string_view character);

enum class Side { kLeft, kRight, kBoth };
/// Without white space at its ends.
std::string_view strip(std::string_view text, Side side = Side::kBoth);
/// Without those characters at its ends.
std::string_view strip(std::string_view text, std::string_view characters, Side side);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
/// First character in upper case, the rest in lower case.
std::string capitalize(std::string_view text);
/// Every run of letters capitalised.
std::string title(std::string_view text);

/// At \n, \r, \r\n and Unicode's other line ends, without them.
std::vector<std::string_view> lines_of(std::string_view text);

}  // namespace tandem::text::jinja
