// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the names of tokens add to a text.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::text {

/// In the order of use. Errors of its reader: see json_part.h.
struct DecodeSpec {
  bool byte_level = true;           ///< names are over GPT-2's alphabet and stand for bytes; nothing below applies
  std::vector<std::pair<std::string, std::string>> replaces;  ///< in each name, second for first
  bool byte_fallback = false;       ///< `<0x41>` is a byte; neighbouring bytes form characters
  std::string first_drops;          ///< a text left out of the first token of all
  std::string separator;            ///< between tokens
  std::string strip;                ///< one character, taken off the beginning of the whole text ...
  int num_strip = 0;                ///< ... at most so often
};

/// What one token adds: some text, or a byte of a character.
struct TokenPart {
  std::string text;
  bool is_byte = false;
};
/// Errors: UserError where `replaces` would make a token many times as long as its name.
TokenPart part_of(const std::string& name, const DecodeSpec& spec);

/// Puts together what tokens add, as it comes.
/// Ownership  uses the spec, which must outlive it.
/// Threads    one text, one thread.
class TextJoiner {
 public:
  explicit TextJoiner(const DecodeSpec& spec) : spec_(&spec), num_strip_(spec.num_strip) {}
  /// Appends to `out` what is certain now: whole characters, U+FFFD for what can become none. In the byte-level form that is one
  /// for each maximal ill-formed part, else one for each byte.
  void add(std::string_view text, bool is_byte, std::string& out);
  /// What is left when nothing more comes.
  void finish(std::string& out);

 private:
  void add_bytes(std::string_view bytes, std::string& out);
  void give(std::string_view text, std::string& out);

  const DecodeSpec* spec_;
  int num_strip_;
  bool at_start_ = true;
  std::string pending_;  // the beginning of a character
};

}  // namespace tandem::text
