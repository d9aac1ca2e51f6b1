// SPDX-License-Identifier: Apache-2.0
#pragma once
// UTF-8 and Unicode normalisation. Pure functions on bytes; linear in the length of the text whatever it holds.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::text {

/// The first UTF-8 sequence of some bytes: a character, or the longest ill-formed part that starts there.
struct Utf8Step {
  size_t length;        ///< bytes taken; at least 1 unless the input is empty
  bool valid;
  bool incomplete;      ///< ill-formed only because the bytes end; more bytes could complete it
  char32_t code_point;  ///< U+FFFD unless valid
};
Utf8Step utf8_step(std::string_view bytes);

bool is_utf8(std::string_view bytes);
/// Each maximal ill-formed part becomes one U+FFFD (Unicode, section 3.9, "substitution of maximal subparts").
std::string repair_utf8(std::string_view bytes);
int64_t num_characters(std::string_view text);
void append_utf8(std::string& out, char32_t code_point);

/// Unicode normalisation form C. Errors: none; ill-formed parts become U+FFFD.
std::string nfc(std::string_view text);
/// False where it is not so, or cannot be said without normalising: a mark that may combine stands in the text.
bool is_nfc(std::string_view text);

/// Letters and what counts as such, marks, decimal digits, connectors such as `_`, joiners: `\w`, and what may not stand
/// beside a `single_word` token.
bool is_word_char(char32_t code_point);
/// The Unicode property White_Space.
bool is_space(char32_t code_point);

}  // namespace tandem::text
