// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/math/relation.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "tandem/base/strings.h"
#include "tandem/reward/math/math_expr.h"
#include "tandem/reward/math/notation.h"

namespace tandem::reward {
namespace {

struct Notation {
  std::string_view text;
  char sign;
};
// Longer ones first: \leq begins with \le.
constexpr Notation kNotations[] = {
    {"\\leqslant", kAtMost}, {"\\geqslant", kAtLeast}, {"\\leq", kAtMost}, {"\\geq", kAtLeast}, {"\\neq", kUnequal},
    {"\\le", kAtMost},       {"\\ge", kAtLeast},       {"\\ne", kUnequal}, {"\\lt", kLess},     {"\\gt", kGreater},
    {"<=", kAtMost},          {">=", kAtLeast},          {"!=", kUnequal},   {"\xE2\x89\xA4", kAtMost},
    {"\xE2\x89\xA5", kAtLeast}, {"\xE2\x89\xA0", kUnequal}};

bool is_sign(char c) { return c == kLess || c == kGreater || c == kAtMost || c == kAtLeast || c == kUnequal; }
bool is_downward(char sign) { return sign == kGreater || sign == kAtLeast; }
bool includes_end(char sign) { return sign == kAtMost || sign == kAtLeast; }

char turned(char sign) {
  switch (sign) {
    case kLess: return kGreater;
    case kGreater: return kLess;
    case kAtMost: return kAtLeast;
    case kAtLeast: return kAtMost;
    default: return sign;
  }
}

Relation ascending(Relation relation) {
  if (!is_downward(relation.signs[0])) return relation;
  std::reverse(relation.terms.begin(), relation.terms.end());
  std::reverse(relation.signs.begin(), relation.signs.end());
  for (char& sign : relation.signs) sign = turned(sign);
  return relation;
}

ExprPtr sides_apart(const Relation& r) {
  const ExprPtr left = parse_expression(r.terms[0]), right = parse_expression(r.terms[1]);
  return left && right ? difference(left, right) : nullptr;
}

}  // namespace

std::string with_plain_signs(std::string text) {
  for (const auto& [notation, sign] : kNotations) {
    // A command ends where its letters end: \le is not the start of \left.
    for (size_t at = 0; (at = text.find(notation, at)) != std::string::npos;) {
      const size_t end = at + notation.size();
      const bool goes_on = notation[0] == '\\' && end < text.size() && std::isalpha(static_cast<unsigned char>(text[end]));
      if (goes_on) at = end;
      else text.replace(at, notation.size(), 1, sign);
    }
  }
  return text;
}

std::optional<Relation> read_relation(const std::string& text) {
  Relation relation{{""}, {}};
  int depth = 0;
  for (char c : text) {
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    if (depth == 0 && is_sign(c)) {
      relation.signs.push_back(c);
      relation.terms.emplace_back();
    } else {
      relation.terms.back() += c;
    }
  }
  for (std::string& term : relation.terms) {
    term = trimmed(term);
    if (term.empty()) return std::nullopt;
  }
  return relation.signs.empty() ? std::nullopt : std::optional(std::move(relation));
}

std::optional<Interval> interval_of(const Relation& given) {
  if (std::find(given.signs.begin(), given.signs.end(), kUnequal) != given.signs.end()) return std::nullopt;
  const Relation r = ascending(given);
  if (r.signs.size() == 2 && !is_downward(r.signs[0]) && !is_downward(r.signs[1]))
    return Interval{r.terms[0], r.terms[2], includes_end(r.signs[0]), includes_end(r.signs[1])};
  if (r.signs.size() != 1) return std::nullopt;
  if (is_symbol(r.terms[0])) return Interval{"", r.terms[1], false, includes_end(r.signs[0])};
  if (is_symbol(r.terms[1])) return Interval{r.terms[0], "", includes_end(r.signs[0]), false};
  return std::nullopt;
}

bool same_inequality(const Relation& a, const Relation& b) {
  if (a.signs.size() != 1 || b.signs.size() != 1) return false;
  const ExprPtr x = sides_apart(a), y = sides_apart(b);
  if (!x || !y) return false;
  const std::optional<double> ratio = constant_ratio(*x, *y);
  return ratio && b.signs[0] == (*ratio > 0 ? a.signs[0] : turned(a.signs[0]));
}

// A letter or a word, with an index, primes and arguments: x, x_1, f(2x), P(A), \angle ABC, Area.
bool is_symbol(std::string_view text) {
  static const TrustedRegex kSymbol(
      R"((?x)^(?:\\(?:angle|triangle|overline|hat|bar|vec|widehat|measuredangle|ell|alpha|beta|gamma|delta|theta|lambda|mu|omega|
          phi|varphi|rho|sigma|tau|epsilon|Delta|Omega|Sigma|arc)\b|[A-Za-z\x05\x20{}~'?]|
          \|[A-Z]{2}\||\^\{-1\}(?=\()|_(?:\w|\{[^{}]{0,20}\})|\([^()]{0,30}\)|\x07)+$)");
  if (text.empty() || text.size() > 60 || text[0] == ' ' || text[0] == '(' || text[0] == '_') return false;
  return kSymbol.found_in(text);
}

}  // namespace tandem::reward
