// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/strings.h"

#include <charconv>
#include <cstdio>
#include <map>

namespace tandem {

std::string trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kBlank);
  return begin == std::string_view::npos ? "" : std::string(text.substr(begin, text.find_last_not_of(kBlank) - begin + 1));
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

}  // namespace tandem
