// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/jinja_value/characters.h"

#include <utf8proc.h>

#include <algorithm>
#include <functional>

namespace tandem::text::jinja {
namespace {

size_t length_of(std::string_view text) { return utf8_step(text).length; }

size_t last_length_of(std::string_view text) {
  size_t length = 1;
  while (length < text.size() && (static_cast<uint8_t>(text[text.size() - length]) & 0xC0) == 0x80) ++length;
  return length;
}

std::string_view strip_if(std::string_view text, Side side, const std::function<bool(std::string_view)>& goes) {
  if (side != Side::kRight)
    while (!text.empty() && goes(text.substr(0, length_of(text)))) text.remove_prefix(length_of(text));
  if (side != Side::kLeft)
    while (!text.empty() && goes(text.substr(text.size() - last_length_of(text)))) text.remove_suffix(last_length_of(text));
  return text;
}

// The letters whose upper case is two of them come out as Python writes them where text of models has them.
void append_upper(std::string& out, char32_t c) {
  if (c == U'\u00DF')
    out += "SS";
  else
    append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}

void append_lower(std::string& out, char32_t c) {
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

size_t Characters::Iterator::first_length(std::string_view text) { return text.empty() ? 0 : length_of(text); }

std::string_view characters_between(std::string_view text, int64_t begin, int64_t end) {
  int64_t at = 0;
  const char* from = text.data() + text.size();
  for (const std::string_view character : characters_of(text)) {
    if (at == begin) from = character.data();
    if (at == end) return from < character.data() ? std::string_view(from, static_cast<size_t>(character.data() - from)) : "";
    ++at;
  }
  return {from, static_cast<size_t>(text.data() + text.size() - from)};
}

char32_t code_point(std::string_view character) { return utf8_step(character).code_point; }

bool is_space(char32_t c) {
  return text::is_space(c) || (c >= 0x1C && c <= 0x1F);
}

bool is_space(std::string_view text) {
  const auto all = characters_of(text);
  return !all.empty() && std::all_of(all.begin(), all.end(), [](std::string_view c) { return is_space(code_point(c)); });
}

bool is_alphabetic(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_digit(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_ND; }

bool is_printable(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO: return false;
    case UTF8PROC_CATEGORY_ZS: return c == U' ';
    default: return true;
  }
}

std::string_view strip(std::string_view text, Side side) {
  return strip_if(text, side, [](std::string_view c) { return is_space(code_point(c)); });
}

std::string_view strip(std::string_view text, std::string_view characters, Side side) {
  const auto set = characters_of(characters);
  return strip_if(text, side, [&](std::string_view c) { return std::find(set.begin(), set.end(), c) != set.end(); });
}

std::string upper(std::string_view text) {
  std::string out;
  for (const std::string_view c : characters_of(text)) append_upper(out, code_point(c));
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  for (const std::string_view c : characters_of(text)) append_lower(out, code_point(c));
  return out;
}

bool is_cased(std::string_view text, bool up) {
  const std::string high = upper(text), low = lower(text);
  return high != low && text == (up ? high : low);
}

std::string capitalize(std::string_view text) {
  const size_t first = text.empty() ? 0 : length_of(text);
  return upper(text.substr(0, first)) + lower(text.substr(first));
}

std::string title(std::string_view text) {
  std::string out;
  bool within = false;
  for (const std::string_view character : characters_of(text)) {
    const char32_t c = code_point(character);
    within ? append_lower(out, c) : append_upper(out, c);
    within = is_alphabetic(c);
  }
  return out;
}

int64_t most_lines(std::string_view text) {
  return 1 + std::count_if(text.begin(), text.end(), [](char c) {
           const auto byte = static_cast<uint8_t>(c);  // a line end, or the last byte of one
           return (byte >= 0x0A && byte <= 0x1E) || byte == 0x85 || byte == 0xA8 || byte == 0xA9;
         });
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    const size_t end = at;
    at += step.length;
    if (!is_line_end(step.code_point)) continue;
    if (step.code_point == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, end - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

}  // namespace tandem::text::jinja
