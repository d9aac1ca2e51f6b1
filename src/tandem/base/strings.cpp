// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/strings.h"

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <map>

namespace tandem {
namespace {

constexpr uint32_t kNone = 0xFFFD;

struct Character {
  size_t length;
  uint32_t point;  ///< kNone where the bytes are no UTF-8
};

// The first character of bytes that are there.
Character first_character(std::string_view bytes) {
  const auto lead = static_cast<uint8_t>(bytes[0]);
  if (lead < 0x80) return {1, lead};
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || bytes.size() < length) return {1, kNone};
  uint32_t point = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<uint8_t>(bytes[i]);
    if ((byte & 0xC0) != 0x80) return {1, kNone};
    point = point << 6 | (byte & 0x3Fu);
  }
  const bool shortest = point >= (length == 2 ? 0x80u : length == 3 ? 0x800u : 0x10000u);
  const bool surrogate = point >= 0xD800 && point < 0xE000;
  return shortest && !surrogate && point <= 0x10FFFF ? Character{length, point} : Character{1, kNone};
}

bool is_obeyed(uint32_t c) {
  if (c == '\n' || c == '\t') return false;
  const bool control = c < 0x20 || (c >= 0x7F && c < 0xA0);
  const bool turns = c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
  return control || turns || c == 0x2028 || c == 0x2029;
}

}  // namespace

std::string trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kBlank);
  return begin == std::string_view::npos ? "" : std::string(text.substr(begin, text.find_last_not_of(kBlank) - begin + 1));
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (size_t at; (at = text.find(separator, begin)) != std::string_view::npos; begin = at + 1)
    parts.push_back(text.substr(begin, at - begin));
  parts.push_back(text.substr(begin));
  return parts;
}

std::string joined(std::span<const std::string> texts, std::string_view between) {
  std::string out;
  for (size_t i = 0; i < texts.size(); ++i) out.append(i == 0 ? "" : between).append(texts[i]);
  return out;
}

std::string lower_ascii(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c += 'a' - 'A';
  return out;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  if (from.empty()) return std::string(text);
  std::string out;
  size_t begin = 0;
  for (size_t at; (at = text.find(from, begin)) != std::string_view::npos; begin = at + from.size())
    out.append(text.substr(begin, at - begin)).append(to);
  return out.append(text.substr(begin));
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  static const std::map<std::string, double> kUnits = {
      {"", 1},      {"B", 1},       {"KB", 1e3},    {"MB", 1e6},    {"GB", 1e9},
      {"TB", 1e12}, {"KIB", 0x1p10}, {"MIB", 0x1p20}, {"GIB", 0x1p30}, {"TIB", 0x1p40}};
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  std::string unit;
  for (const char c : std::string_view(rest, text.data() + text.size()))
    if (c != ' ' || !unit.empty()) unit += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  const auto known = kUnits.find(unit);
  if (known == kUnits.end()) return std::nullopt;
  const double bytes = number * known->second;
  if (!(bytes >= 1 && bytes < 0x1p62)) return std::nullopt;
  return static_cast<int64_t>(bytes);
}

std::string bytes_text(int64_t bytes) {
  constexpr struct {
    const char* name;
    double bytes;
    int digits;
  } kUnits[] = {{"GB", 1e9, 3}, {"MB", 1e6, 1}, {"KB", 1e3, 1}};
  for (const auto& unit : kUnits)
    if (static_cast<double>(bytes) >= unit.bytes) {
      char text[40];
      std::snprintf(text, sizeof text, "%.*f %s", unit.digits, static_cast<double>(bytes) / unit.bytes, unit.name);
      return text;
    }
  return std::to_string(bytes) + " B";
}

std::string terminal_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character c = first_character(text);
    if (is_obeyed(c.point) || (c.point == kNone && c.length == 1)) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c.point));
      out += escape;
    } else {
      out += text.substr(0, c.length);
    }
    text.remove_prefix(c.length);
  }
  return out;
}

}  // namespace tandem
