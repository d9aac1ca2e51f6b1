// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/bytes.h"

#include <charconv>
#include <map>
#include <string>

namespace tandem {

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

}  // namespace tandem
