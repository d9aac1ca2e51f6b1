// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/correction_rule.h"

#include <map>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::algo {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

double bound_of(const std::string& text, const std::string& where) {
  size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || !(value > 0))
    throw UserError(where, "'" + text + "' is no bound", "a number above 0, or two as in 0.5_2.0");
  return value;
}

Rejection rejection_of(const std::string& rule, const std::string& bounds, const std::string& where) {
  const size_t cut = rule.rfind('_');
  const std::string level = rule.substr(0, cut), distance = cut == std::string::npos ? "" : rule.substr(cut + 1);
  using Level = Rejection::Level;
  using Distance = Rejection::Distance;
  static const std::map<std::string, Level> kLevels = {{"token", Level::kToken}, {"seq_sum", Level::kSequenceSum},
                                                       {"seq_mean", Level::kSequenceMean}, {"seq_max", Level::kSequenceMax}};
  static const std::map<std::string, Distance> kDistances = {{"k1", Distance::kK1}, {"k2", Distance::kK2}, {"k3", Distance::kK3}};
  if (!kLevels.contains(level) || !kDistances.contains(distance))
    throw UserError(where, "unknown rule '" + rule + "'", "token, seq_sum, seq_mean or seq_max, then _k1, _k2 or _k3");
  Rejection out{.distance = kDistances.at(distance), .level = kLevels.at(level)};

  const std::vector<std::string> numbers = split(bounds, '_');
  const bool two = numbers.size() == 2;
  if (numbers.empty() || numbers.size() > 2 || (two && out.distance != Rejection::Distance::kK1))
    throw UserError(where, "'" + bounds + "' does not bound '" + rule + "'", "one number; k1 may have two, as in 0.5_2.0");
  out.upper = bound_of(numbers.back(), where);
  if (out.distance == Rejection::Distance::kK1) out.lower = two ? bound_of(numbers.front(), where) : 1 / out.upper;
  if (out.lower > out.upper) throw UserError(where, "'" + bounds + "': the lower bound is above the upper", "as in 0.5_2.0");
  return out;
}

}  // namespace

std::vector<Rejection> rejections_of(const std::string& rules, const std::string& bounds, const std::string& where) {
  const std::vector<std::string> names = split(rules, ','), limits = split(bounds, ',');
  if (names.size() != limits.size())
    throw UserError(where, join_text(names.size(), " rules with ", limits.size(), " bounds"), "one bound for each rule, between commas");
  std::vector<Rejection> out;
  for (size_t i = 0; i < names.size(); ++i) out.push_back(rejection_of(names[i], limits[i], where));
  return out;
}

}  // namespace tandem::algo
