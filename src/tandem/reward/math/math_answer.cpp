// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/math/math_answer.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "tandem/base/strings.h"
#include "tandem/reward/math/hendrycks.h"
#include "tandem/reward/math/math_expr.h"
#include "tandem/reward/math/notation.h"
#include "tandem/reward/math/relation.h"

namespace tandem::reward {
namespace {

constexpr int kMaxNesting = 8;

// What stands between brackets. Where blanks follow the commas that separate, one without a blank is within a number: (1,000, 2).
std::vector<std::string> members(const std::string& inner) {
  return split_outside_brackets(inner.find(", ") == std::string::npos ? inner : without_thousands(inner), ",");
}

bool same(const std::string& a, const std::string& b, int nesting);

bool same_in_order(const std::vector<std::string>& a, const std::vector<std::string>& b, int nesting) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!same(a[i], b[i], nesting)) return false;
  return true;
}

// Every member of one is a member of the other.
bool same_set(const std::vector<std::string>& a, const std::vector<std::string>& b, int nesting) {
  if (a.size() > 64 || b.size() > 64) return false;
  const auto within = [nesting](const std::vector<std::string>& some, const std::vector<std::string>& all) {
    return std::all_of(some.begin(), some.end(), [&](const std::string& one) {
      return std::any_of(all.begin(), all.end(), [&](const std::string& other) { return same(one, other, nesting); });
    });
  };
  return within(a, b) && within(b, a);
}

bool same_in_any_order(const std::vector<std::string>& a, std::vector<std::string> b, int nesting) {
  if (!a.empty() && !b.empty() && a.size() != b.size() && bracketed(a[0]).open && bracketed(b[0]).open) return same_set(a, b, nesting);
  if (a.size() != b.size() || a.size() > 64) return false;
  for (const std::string& part : a) {
    const auto found = std::find_if(b.begin(), b.end(), [&](const std::string& other) { return same(part, other, nesting); });
    if (found == b.end()) return false;
    b.erase(found);
  }
  return true;
}

// \pm stands for two values.
std::vector<std::string> with_both_signs(const std::vector<std::string>& parts) {
  std::vector<std::string> out;
  for (const std::string& part : parts) {
    if (part.find("\\pm") == std::string::npos) {
      out.push_back(part);
      continue;
    }
    out.push_back(replaced(part, "\\pm", "+"));
    out.push_back(replaced(part, "\\pm", "-"));
  }
  return out;
}

bool same_matrix(const std::string& a, const std::string& b, int nesting) {
  auto cells = [](const std::string& text) {
    std::vector<std::vector<std::string>> rows;
    const size_t begin = text.find('}') + 1, end = text.rfind("\\end");
    for (const std::string& row : split_outside_brackets(text.substr(begin, end - begin), kRowBreak))
      if (!row.empty()) rows.push_back(split_outside_brackets(row, "&"));
    return rows;
  };
  const auto rows_a = cells(a), rows_b = cells(b);
  if (rows_a.size() != rows_b.size()) return false;
  for (size_t i = 0; i < rows_a.size(); ++i)
    if (!same_in_order(rows_a[i], rows_b[i], nesting)) return false;
  return true;
}

bool is_matrix(const std::string& text) {
  return text.starts_with("\\begin{") && text.find("matrix}") != std::string::npos && text.rfind("\\end") != std::string::npos;
}

bool same_scalar(const std::string& written_a, const std::string& written_b) {
  const std::string a = without_units(written_a), b = without_units(written_b);
  const bool percent_a = a.ends_with('%'), percent_b = b.ends_with('%');
  const ExprPtr x = parse_expression(percent_a ? std::string_view(a).substr(0, a.size() - 1) : std::string_view(a));
  const ExprPtr y = parse_expression(percent_b ? std::string_view(b).substr(0, b.size() - 1) : std::string_view(b));
  if (!x || !y) return false;
  if (same_value(*x, *y)) return true;
  if (percent_a == percent_b) return false;
  const ExprPtr hundredth = parse_expression("(" + (percent_a ? a.substr(0, a.size() - 1) : b.substr(0, b.size() - 1)) + ")/100");
  return hundredth && same_value(*hundredth, percent_a ? *y : *x);
}

bool same_equation(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  const ExprPtr left_a = parse_expression(a[0]), right_a = parse_expression(a[1]), left_b = parse_expression(b[0]),
                right_b = parse_expression(b[1]);
  return left_a && right_a && left_b && right_b && proportional(*difference(left_a, right_a), *difference(left_b, right_b));
}

std::string lower_without_spaces(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isspace(c); });
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// (A) and A name the same choice.
std::string choice_letter(const std::string& text) {
  if (text.size() == 1 && std::isupper(static_cast<unsigned char>(text[0]))) return text;
  return text.size() == 3 && text[0] == '(' && text[2] == ')' && std::isupper(static_cast<unsigned char>(text[1])) ? text.substr(1, 1) : "";
}

// `x \in A` as A.
std::string without_membership(const std::string& text) {
  const auto sides = split_outside_brackets(text, "\\in ");
  return sides.size() == 2 && is_symbol(sides[0]) ? sides[1] : text;
}

std::optional<Interval> interval_in(const std::string& text) {
  if (const auto relation = read_relation(text)) return interval_of(*relation);
  const Bracketed box = bracketed(text);
  const auto ends = members(box.inner);
  if ((box.open != '(' && box.open != '[') || ends.size() != 2) return std::nullopt;
  const auto finite = [](const std::string& end) { return end.find("\\infty") == std::string::npos ? end : std::string(); };
  return Interval{finite(ends[0]), finite(ends[1]), box.open == '[', box.close == ']'};
}

// At least one of the two is written with signs; the other may be brackets.
bool same_relation(const std::string& a, const std::string& b, int nesting) {
  const auto relation_a = read_relation(a), relation_b = read_relation(b);
  if (relation_a && relation_b && same_inequality(*relation_a, *relation_b)) return true;
  const auto interval_a = interval_in(a), interval_b = interval_in(b);
  if (!interval_a || !interval_b) return false;
  const auto same_end = [&](const std::string& x, const std::string& y) { return x.empty() ? y.empty() : same(x, y, nesting); };
  return interval_a->has_low == interval_b->has_low && interval_a->has_high == interval_b->has_high &&
         same_end(interval_a->low, interval_b->low) && same_end(interval_a->high, interval_b->high);
}

// (1, 3) may be written 1, 3; a set as a list in any order.
bool same_list(const Bracketed& box, const std::vector<std::string>& inner, const std::vector<std::string>& list, int nesting) {
  if (box.open == '{') return same_in_any_order(with_both_signs(inner), list, nesting);
  return box.open == '(' && box.close == ')' && inner.size() > 1 && same_in_order(inner, list, nesting);
}

// `x = 5` means 5; `2x + z = 1` does not mean 1. A chain of equations, x = 2 + 3 = 5, says its last member.
std::vector<std::string> sides_of(const std::string& text) {
  std::vector<std::string> sides = split_outside_brackets(text, "=");
  if (sides.size() > 2) sides = {sides.front(), sides.back()};
  return sides;
}
bool is_assignment(const std::vector<std::string>& sides) {
  if (sides.size() != 2 || sides[0].find_first_of("+-*/^") != std::string::npos) return false;
  return sides[0].empty() || !std::isdigit(static_cast<unsigned char>(sides[0][0]));
}

bool same(const std::string& written_a, const std::string& written_b, int nesting) {
  if (nesting > kMaxNesting || written_a.empty() || written_b.empty()) return false;
  if (written_a == written_b) return true;
  const std::string a = without_membership(written_a), b = without_membership(written_b);
  if (read_relation(a) || read_relation(b)) return same_relation(a, b, nesting + 1);
  if (is_matrix(a) && is_matrix(b)) return same_matrix(a, b, nesting + 1);
  const auto unions_a = split_outside_brackets(a, "\\cup"), unions_b = split_outside_brackets(b, "\\cup");
  if (unions_a.size() > 1 || unions_b.size() > 1) return same_in_any_order(unions_a, unions_b, nesting + 1);
  const Bracketed box_a = bracketed(a), box_b = bracketed(b);
  const auto inner_a = members(box_a.inner), inner_b = members(box_b.inner);
  if (box_a.open == '{' && box_b.open == '{') return same_set(with_both_signs(inner_a), with_both_signs(inner_b), nesting + 1);
  if (box_a.open && box_b.open && (inner_a.size() > 1 || inner_b.size() > 1))
    return box_a.open == box_b.open && box_a.close == box_b.close && same_in_order(inner_a, inner_b, nesting + 1);
  const auto list_a = with_both_signs(split_outside_brackets(a, ",")), list_b = with_both_signs(split_outside_brackets(b, ","));
  if (list_b.size() > 1 && list_a.size() == 1 && same_list(box_a, inner_a, list_b, nesting + 1)) return true;
  if (list_a.size() > 1 && list_b.size() == 1 && same_list(box_b, inner_b, list_a, nesting + 1)) return true;
  if (list_a.size() > 1 || list_b.size() > 1) return same_in_any_order(list_a, list_b, nesting + 1);
  const auto sides_a = sides_of(a), sides_b = sides_of(b);
  if (sides_a.size() == 2 && sides_b.size() == 2)
    return (same(sides_a[1], sides_b[1], nesting + 1) && sides_a[0] == sides_b[0]) || same_equation(sides_a, sides_b);
  if (is_assignment(sides_a) && sides_b.size() == 1) return same(sides_a[1], b, nesting + 1);
  if (is_assignment(sides_b) && sides_a.size() == 1) return same(a, sides_b[1], nesting + 1);
  if (!choice_letter(a).empty() && choice_letter(a) == choice_letter(b)) return true;
  return same_scalar(a, b) || lower_without_spaces(a) == lower_without_spaces(b);
}

}  // namespace

namespace {

constexpr size_t kLongestAnswer = 100;  // a longer right answer that is no mathematics is a solution that ends with it

std::string wanted(std::string_view gold) {
  if (const auto box = boxed_answers(gold)) return *box;
  if (gold.size() > kLongestAnswer && !is_mathematical(gold)) return final_answer(gold).value_or(std::string(gold));
  return std::string(gold);
}

}  // namespace

bool same_answer(std::string_view given, std::string_view gold) {
  const std::string right = wanted(gold);
  if (same(normal(given), normal(right), 0)) return true;
  // Its normaliser drops a short left side, whatever that is.
  const bool alike = (given.find('=') == std::string_view::npos) == (right.find('=') == std::string::npos);
  return alike && !trimmed(given).empty() && hendrycks_equal(trimmed(given), trimmed(right));
}

bool can_compare(std::string_view given, std::string_view gold) {
  const auto is_plain = [](std::string_view text) { return bracketed(normal(text)).open == 0 && is_mathematical(text); };
  return is_plain(given) && is_plain(wanted(gold));
}

bool is_mathematical(std::string_view answer) {
  const auto box = boxed_answer(answer);
  const std::string text = normal(box ? *box : std::string(answer));
  if (is_matrix(text) || bracketed(text).open) return true;
  for (const std::string& part : split_outside_brackets(text, "="))
    if (!parse_expression(part.ends_with('%') ? std::string_view(part).substr(0, part.size() - 1) : std::string_view(part))) return false;
  return true;
}

}  // namespace tandem::reward
