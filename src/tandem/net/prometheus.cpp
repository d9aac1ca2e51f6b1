// SPDX-License-Identifier: Apache-2.0
#include "tandem/net/prometheus.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "tandem/base/strings.h"

namespace tandem::net {
namespace {

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  std::array<char, 32> digits;
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

// Of a label all three are escaped, of HELP not the quote.
std::string escaped(const std::string& text, bool is_label) {
  const std::string out = replaced(replaced(text, "\\", "\\\\"), "\n", "\\n");
  return is_label ? replaced(out, "\"", "\\\"") : out;
}

}  // namespace

std::string prometheus_name(std::string_view metric) {
  std::string name = "tandem_";
  for (const char c : metric) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    name += plain ? c : '_';
  }
  return name;
}

std::string exposition(const std::map<std::string, double>& metrics) {
  std::map<std::string, std::vector<std::pair<std::string, double>>> gauges;
  for (const auto& [metric, value] : metrics) gauges[prometheus_name(metric)].emplace_back(metric, value);
  std::string text;
  for (const auto& [name, members] : gauges) {
    std::string meant;
    for (const auto& member : members) meant += (meant.empty() ? "" : ", ") + member.first;
    text += "# HELP " + name + " " + escaped(meant, false) + " of the newest step\n# TYPE " + name + " gauge\n";
    for (const auto& [metric, value] : members) {
      const std::string label = members.size() > 1 ? "{metric=\"" + escaped(metric, true) + "\"}" : "";
      text += name + label + " " + number_text(value) + "\n";
    }
  }
  return text;
}

}  // namespace tandem::net
