// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/correction_rule.h"

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
  Rejection out;
  if (level == "token") out.level = Rejection::Level::kToken;
  else if (level == "seq_sum") out.level = Rejection::Level::kSequenceSum;
  else if (level == "seq_mean") out.level = Rejection::Level::kSequenceMean;
  else if (level == "seq_max") out.level = Rejection::Level::kSequenceMax;
  else throw UserError(where, "unknown rule '" + rule + "'", "token, seq_sum, seq_mean or seq_max, then _k1, _k2 or _k3");
  if (distance == "k1") out.distance = Rejection::Distance::kK1;
  else if (distance == "k2") out.distance = Rejection::Distance::kK2;
  else if (distance == "k3") out.distance = Rejection::Distance::kK3;
  else throw UserError(where, "unknown rule '" + rule + "'", "token, seq_sum, seq_mean or seq_max, then _k1, _k2 or _k3");

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
