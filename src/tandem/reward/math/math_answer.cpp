// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/math/math_answer.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <vector>

#include "tandem/base/strings.h"
#include "tandem/reward/math/math_expr.h"
#include "tandem/reward/math/notation.h"
#include "tandem/reward/math/relation.h"
#include "tandem/reward/math/words.h"

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

// \pm stands for two values, \mp for the other sign.
std::vector<std::string> with_both_signs(const std::vector<std::string>& parts) {
  std::vector<std::string> out;
  for (const std::string& part : parts) {
    if (part.find("\\pm") == std::string::npos) {
      out.push_back(part);
      continue;
    }
    out.push_back(replaced(replaced(part, "\\pm", "+"), "\\mp", "-"));
    out.push_back(replaced(replaced(part, "\\pm", "-"), "\\mp", "+"));
  }
  return out;
}

// The number before a table, as in \frac12\begin{pmatrix}; nullopt where something else is there.
std::optional<std::string> factor_of_table(const std::string& text) {
  std::string factor = trimmed(text.substr(0, text.find("\\begin{")));
  for (const char* sign : {"\\cdot", "\\times", "*"})
    if (factor.ends_with(sign)) factor = trimmed(factor.substr(0, factor.size() - std::string_view(sign).size()));
  if (factor == "-") return "-1";
  const ExprPtr value = factor.empty() ? nullptr : parse_expression(factor);
  return factor.empty() || value ? std::optional(factor) : std::nullopt;
}

// The kind of a table: a determinant is no matrix. "" for what is none.
std::string kind_of_table(const std::string& text) {
  const size_t begin = text.find("\\begin{");
  if (begin == std::string::npos || text.rfind("\\end") == std::string::npos || text.find('}', text.rfind("\\end")) + 1 != text.size())
    return "";
  const std::string name = text.substr(begin + 7, text.find('}', begin) - begin - 7);
  const bool is_matrix = name.ends_with("matrix") && !name.starts_with('v') && !name.starts_with('V');
  const bool is_one = text.find("\\begin{", begin + 1) == std::string::npos;
  if (begin > 0 && (!is_matrix || !is_one || !factor_of_table(text))) return "";
  if (name.ends_with("matrix")) return is_matrix ? "matrix" : name;
  return name == "cases" || name == "array" || name.starts_with("align") ? name : "";
}

// Of a table; of [[1,2],[3,4]]; of (1,2) as a column.
std::vector<std::vector<std::string>> rows_of(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  if (kind_of_table(text).empty()) {
    const Bracketed list = bracketed(text);
    for (const std::string& member : list.open == 0 || list.open == '{' ? std::vector<std::string>() : members(list.inner)) {
      const Bracketed row = bracketed(member);
      if (row.open == '[' && list.open == '[') rows.push_back(members(row.inner));
      else if (row.open == 0 && list.open == '(' && list.close == ')') rows.push_back({member});
      else return {};
    }
    return rows;
  }
  const std::string factor = factor_of_table(text).value_or("");
  const size_t begin = text.find('}', text.find("\\begin{")) + 1, end = text.rfind("\\end");
  for (const std::string& row : split_outside_brackets(text.substr(begin, end - begin), kRowBreak))
    if (!row.empty()) rows.push_back(split_outside_brackets(row, "&"));
  for (auto& row : rows)
    for (std::string& cell : row)
      if (!factor.empty()) cell = "(" + factor + ")*(" + cell + ")";
  return rows;
}

bool same_matrix(const std::string& a, const std::string& b, int nesting) {
  const auto rows_a = rows_of(a), rows_b = rows_of(b);
  if (rows_a.empty() || rows_a.size() != rows_b.size()) return false;
  for (size_t i = 0; i < rows_a.size(); ++i)
    if (!same_in_order(rows_a[i], rows_b[i], nesting)) return false;
  return true;
}

// `a` and `b` hold no words. A percentage may be written as its number or its share.
bool same_number_written(const std::string& a, const std::string& b) {
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

// What is compared where nothing else is known; words in any case.
std::string bare(std::string text) {
  std::erase(text, kWord);
  static const TrustedRegex kBlank(R"((?<!\d)\s++|\s++(?!\d))");  // `1 2` is not 12
  text = substituted(kBlank, text, "");
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool in_word = is_letter(text[i]) && ((i > 0 && is_letter(text[i - 1])) || (i + 1 < text.size() && is_letter(text[i + 1])));
    const bool is_script = (text[i] == '_' || text[i] == '^') && i + 3 < text.size() && text[i + 1] == '{' && text[i + 3] == '}';
    out += in_word ? static_cast<char>(std::tolower(static_cast<unsigned char>(text[i]))) : text[i];
    if (is_script) out += text[i + 2], i += 3;
  }
  return out;
}

// (A) and A name the same choice.
std::string choice_letter(const std::string& text) {
  if (text.size() == 1 && std::isupper(static_cast<unsigned char>(text[0]))) return text;
  if (text.size() != 3 || text[0] != '(' || text[2] != ')' || !is_letter(text[1])) return "";
  return std::string(1, static_cast<char>(std::toupper(static_cast<unsigned char>(text[1]))));
}

// `|x - 1| < 2` as -2 < x - 1 < 2, solved for x; with > two intervals.
std::string without_bars(const std::string& text) {
  static const TrustedRegex kBars(R"(^\|\s*([A-Za-z])\s*(?:([-+])\s*([^|A-Za-z]+))?\|$)");
  const auto relation = text.starts_with('|') ? read_relation(text) : std::nullopt;
  if (!relation || relation->signs.size() != 1 || relation->signs[0] == kUnequal) return text;
  text::Regex::Scan scan(kBars, relation->terms[0]);
  const ExprPtr bound = parse_expression(relation->terms[1]);
  if (!scan.next() || !bound || has_variables(*bound)) return text;
  const std::string shift = scan.text(3).empty() ? "" : "-(" + scan.text(2) + scan.text(3) + ")";
  const std::string low = "-(" + relation->terms[1] + ")" + shift, high = "(" + relation->terms[1] + ")" + shift;
  const char sign = relation->signs[0];
  if (sign == kLess || sign == kAtMost) return low + sign + scan.text(1) + sign + high;
  const bool holds_end = sign == kAtLeast;
  return "(-\\infty," + low + (holds_end ? "]" : ")") + "\\cup" + (holds_end ? "[" : "(") + high + ",\\infty)";
}

// P and (1,2) of `P(1,2)`, A and the matrix of `A = \begin{pmatrix}`; no name and the text where there is none.
struct Named {
  std::string name, value;
};
Named named(const std::string& text) {
  const auto equation = split_outside_brackets(text, "=");
  if (equation.size() == 2 && is_symbol(equation[0]) && !kind_of_table(equation[1]).empty()) return {equation[0], equation[1]};
  if (text.size() > 4 && std::isupper(static_cast<unsigned char>(text[0])) && bracketed(text.substr(1)).open == '(') {
    const auto place = members(bracketed(text.substr(1)).inner);
    const auto is_number = [](const std::string& one) { const ExprPtr e = parse_expression(one); return e && !has_variables(*e); };
    if (place.size() > 1 && std::ranges::all_of(place, is_number)) return {text.substr(0, 1), text.substr(1)};
  }
  return {"", text};
}

// `x \in A` as A, `\{x \mid x > 2\}` as x > 2, `(x,y)=(1,2)` as x=1,y=2.
std::string without_membership(const std::string& text) {
  if (const std::string solved = without_bars(text); solved != text) return solved;
  const auto equation = split_outside_brackets(text, "=");
  if (equation.size() == 2 && bracketed(equation[0]).open == '(' && bracketed(equation[1]).open == '(') {
    const auto names = members(bracketed(equation[0]).inner), values = members(bracketed(equation[1]).inner);
    std::string list;
    for (size_t i = 0; names.size() > 1 && names.size() == values.size() && i < names.size(); ++i)
      list += (i > 0 ? "," : "") + names[i] + "=" + values[i];
    return list.empty() ? text : list;
  }
  const auto sides = split_outside_brackets(text, "\\in");
  if (sides.size() == 2 && is_symbol(sides[0])) {
    const bool in_plain_braces = sides[1].starts_with('{') && sides[1].ends_with('}');
    return in_plain_braces ? sides[1].substr(1, sides[1].size() - 2) : sides[1];
  }
  const Bracketed set = bracketed(text);
  auto condition = set.open == '{' ? split_outside_brackets(set.inner, "|") : std::vector<std::string>();
  if (condition.size() == 1) condition = split_outside_brackets(set.inner, ":");
  return condition.size() == 2 && is_symbol(split_outside_brackets(condition[0], "\\in")[0]) ? condition[1] : text;
}

constexpr std::string_view kReals = "(-\\infty,\\infty)";

// The intervals of a union; all real numbers but one, in either notation, are two.
std::vector<std::string> parts_of_union(const std::string& text) {
  const auto less = split_outside_brackets(text, "\\setminus");
  std::string point = less.size() == 2 && less[0] == kReals && bracketed(less[1]).open == '{' ? bracketed(less[1]).inner : "";
  const auto relation = read_relation(text);
  if (relation && relation->signs == std::vector{kUnequal} && is_symbol(relation->terms[0])) point = relation->terms[1];
  if (!point.empty() && point.find(',') == std::string::npos) return {"(-\\infty," + point + ")", "(" + point + ",\\infty)"};
  return split_outside_brackets(text, "\\cup");
}

std::optional<Interval> interval_in(const std::string& text) {
  const auto low_of = [](const std::string& end) { return end == "-\\infty" ? std::string() : end; };
  const auto high_of = [](const std::string& end) { return end == "\\infty" || end == "+\\infty" ? std::string() : end; };
  if (const auto relation = read_relation(text)) {
    auto interval = interval_of(*relation);
    if (interval) interval->low = low_of(interval->low), interval->high = high_of(interval->high);
    return interval;
  }
  const Bracketed box = bracketed(text);
  const auto ends = members(box.inner);
  if ((box.open != '(' && box.open != '[') || ends.size() != 2) return std::nullopt;
  return Interval{low_of(ends[0]), high_of(ends[1]), box.open == '[', box.close == ']'};
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

bool is_constant(const std::string& text) {
  const ExprPtr e = parse_expression(text);
  return e && !has_variables(*e);
}

// `x = 5` means 5; `2x + z = 1` does not mean 1. A chain of equations, x = 2 + 3 = 5, says its last member.
std::vector<std::string> sides_of(const std::string& text) {
  std::vector<std::string> sides = split_outside_brackets(text, "=");
  if (sides.size() > 2) sides = {sides.front(), sides.back()};
  if (sides.size() == 2 && is_constant(sides[0]) && is_symbol(sides[1]) && !is_constant(sides[1])) std::swap(sides[0], sides[1]);  // 3 = x
  return sides;
}

// Two numbers that a step of a calculation may call equal, with rounding.
bool nearly_equal(const std::string& a, const std::string& b) {
  const ExprPtr x = parse_expression(a), y = parse_expression(b);
  const auto ratio = x && y ? constant_ratio(*x, *y) : std::nullopt;
  return x && y && (same_value(*x, *y) || (ratio && std::fabs(*ratio - 1) < 0.01));
}

// A name, several of them, or a calculation that comes to its result.
bool is_assignment(const std::vector<std::string>& sides) {
  if (sides.size() != 2) return false;
  if (is_constant(sides[0])) return nearly_equal(sides[0], replaced(sides[1], "%", ""));
  const Bracketed tuple = bracketed(sides[0]);
  const auto names = members(tuple.open ? tuple.inner : sides[0]);
  return std::all_of(names.begin(), names.end(), [](const std::string& name) { return is_symbol(name); });
}

// `x = 1, y = 2` against `1, 2`: names that differ stand in their order.
bool names_differ(const std::vector<std::string>& list) {
  std::set<std::string> names;
  for (const std::string& part : list)
    if (const auto sides = sides_of(part); sides.size() == 2) names.insert(sides[0]);
  return names.size() > 1;
}

bool same_lists(const std::vector<std::string>& a, const std::vector<std::string>& b, int nesting) {
  return names_differ(a) != names_differ(b) ? same_in_order(a, b, nesting) : same_in_any_order(a, b, nesting);
}

// An angle in degrees against one in radians that has \pi; `3:4` against the fraction of these two numbers, for 12:30 is a time.
bool same_in_other_words(const Worded& a, const Worded& b) {
  using Words = std::vector<std::string>;
  const auto is_one = [](const Worded& text, const char* word) { return text.words.size() == 1 && text.words[0] == Words{word}; };
  const bool is_other_angle = is_one(a, "degree") && (!b.has_words() || is_one(b, "radian"));
  if (is_other_angle && a.terms.back().empty() && b.terms[0].find("pi") != std::string::npos)
    return same_number_written("(" + a.terms[0] + ")*\\pi/180", b.terms[0]);
  const bool is_ratio = a.words.size() == 1 && (a.words[0] == Words{"to"} || a.words[0] == Words{"out", "of"}) && a.terms.size() == 2;
  if (!is_ratio || a.terms[0].empty() || a.terms[1].empty() || b.has_words()) return false;
  std::string fraction = b.terms[0];
  std::erase_if(fraction, [](char c) { return c == ' ' || c == '{' || c == '}'; });
  const std::string first = trimmed(a.terms[0]), second = trimmed(a.terms[1]);
  return fraction == first + "/" + second || (b.terms[0].starts_with("\\frac") && fraction == "\\frac" + first + second &&
                                              first.size() + second.size() == 2);
}

bool same_with_words(const Worded& a, const Worded& b, int nesting) {
  if (same_in_other_words(a, b) || same_in_other_words(b, a)) return true;
  const WordMatch match = match_words(a, b);
  if (!match.same) return false;
  const auto terms = [](const Worded& text, const std::string& factor) {
    std::vector<std::string> out;
    for (const std::string& term : text.terms)
      if (!term.empty()) out.push_back(factor == "1" ? term : "(" + term + ")*" + factor);
    return out;
  };
  const auto terms_a = terms(a, match.factor_a), terms_b = terms(b, match.factor_b);
  const auto same_term = [nesting](const std::string& x, const std::string& y) { return same_number_written(x, y) || same(x, y, nesting); };
  return terms_a.size() == terms_b.size() && std::equal(terms_a.begin(), terms_a.end(), terms_b.begin(), same_term);
}

// x_1 = 2 and x_2 = 3 may be written with one x: an index alone may be left out.
bool same_name(const std::string& a, const std::string& b) {
  const auto base = [](const std::string& name) { return name.substr(0, name.find('_')); };
  return a == b || (base(a) == base(b) && (a == base(a) || b == base(b)));
}

bool same_equations(const std::string& a, const std::string& b, int nesting) {
  const auto sides_a = sides_of(a), sides_b = sides_of(b);
  if (sides_a.size() == 2 && sides_b.size() == 2) {
    if (is_constant(sides_a[0]) || is_constant(sides_b[0]))
      return is_assignment(sides_a) && is_assignment(sides_b) && same(sides_a[1], sides_b[1], nesting);
    return (same(sides_a[1], sides_b[1], nesting) && same_name(bare(sides_a[0]), bare(sides_b[0]))) || same_equation(sides_a, sides_b);
  }
  if (is_assignment(sides_a) && sides_b.size() == 1) return same(sides_a[1], b, nesting);
  if (is_assignment(sides_b) && sides_a.size() == 1) return same(a, sides_b[1], nesting);
  return false;
}

// A set of one number may be written as the number.
bool is_single(const std::vector<std::string>& members) {
  return members.size() == 1 && parse_expression(members[0]) && members[0][0] != '(';
}

// `x \ne 1, 2` as x \ne 1, x \ne 2.
std::vector<std::string> with_names(std::vector<std::string> list) {
  const auto first = list.size() > 1 ? read_relation(list[0]) : std::nullopt;
  if (!first || first->signs != std::vector{kUnequal} || !is_symbol(first->terms[0])) return list;
  for (size_t i = 1; i < list.size(); ++i)
    if (!read_relation(list[i])) list[i] = first->terms[0] + kUnequal + list[i];
  return list;
}

// (C) 12 of a test with choices, as its letter and its text.
std::optional<std::pair<std::string, std::string>> letter_and_text(const std::string& text) {
  static const TrustedRegex kBoth(R"(^(\(?[A-E]\))[.:]?\s+(-?(?:\d|\\(?:frac|sqrt|pi)(?![a-z]))(?:\\[a-z]++|[^A-Za-z\x05])*+)$)");
  text::Regex::Scan scan(kBoth, text);
  if (!scan.next()) return std::nullopt;
  return std::pair(std::string(1, scan.text(1)[scan.text(1)[0] == '(']), trimmed(scan.text(2)));
}

// Of sets, intervals, tuples and lists; nullopt where neither is one.
std::optional<bool> same_collection(const std::string& a, const std::string& b, int nesting) {
  const bool are_relations = read_relation(a) && read_relation(b);
  const auto unions_a = are_relations ? std::vector{a} : parts_of_union(a), unions_b = are_relations ? std::vector{b} : parts_of_union(b);
  const auto list_a = with_both_signs(with_names(split_outside_brackets(a, ","))),
             list_b = with_both_signs(with_names(split_outside_brackets(b, ",")));
  const auto relations = [](const std::vector<std::string>& list) {
    return std::all_of(list.begin(), list.end(), [](const std::string& part) { return read_relation(part).has_value(); });
  };
  if (unions_a.size() > 1 && list_b.size() > 1 && relations(list_b)) return same_in_any_order(unions_a, list_b, nesting);
  if (unions_b.size() > 1 && list_a.size() > 1 && relations(list_a)) return same_in_any_order(unions_b, list_a, nesting);
  const auto intervals = [](const std::vector<std::string>& list) {
    return std::ranges::all_of(list, [](const std::string& part) { return !read_relation(part) && interval_in(without_membership(part)); });
  };
  if (unions_a.size() > 1 && list_b.size() > 1 && intervals(list_b)) return same_in_any_order(unions_a, list_b, nesting);  // on A and B
  if (unions_b.size() > 1 && list_a.size() > 1 && intervals(list_a)) return same_in_any_order(unions_b, list_a, nesting);
  if (unions_a.size() > 1 || unions_b.size() > 1) return same_in_any_order(unions_a, unions_b, nesting);
  const Bracketed box_a = bracketed(a), box_b = bracketed(b);
  const auto inner_a = members(box_a.inner), inner_b = members(box_b.inner);
  if (box_a.open == '{' && box_b.open == '{') return same_set(with_both_signs(inner_a), with_both_signs(inner_b), nesting);
  if (box_a.open && box_b.open && (inner_a.size() > 1 || inner_b.size() > 1))
    return box_a.open == box_b.open && box_a.close == box_b.close && same_in_order(inner_a, inner_b, nesting);
  if (list_b.size() > 1 && list_a.size() == 1 && same_list(box_a, inner_a, list_b, nesting)) return true;
  if (list_a.size() > 1 && list_b.size() == 1 && same_list(box_b, inner_b, list_a, nesting)) return true;
  if (list_a.size() > 1 || list_b.size() > 1) return same_lists(list_a, list_b, nesting);
  if (box_a.open == '{' && box_b.open == 0) return is_single(inner_a) && same(inner_a[0], b, nesting);
  if (box_b.open == '{' && box_a.open == 0) return is_single(inner_b) && same(a, inner_b[0], nesting);
  return std::nullopt;
}

bool same(const std::string& written_a, const std::string& written_b, int nesting) {
  if (nesting > kMaxNesting || written_a.empty() || written_b.empty()) return false;
  if (written_a == written_b) return true;
  const Named named_a = named(written_a), named_b = named(written_b);
  const bool may_lack = named_a.name.empty() || named_b.name.empty() || named_a.name == named_b.name;  // C(5,2) is not P(5,2)
  const std::string a = without_membership(may_lack ? named_a.value : written_a),
                    b = without_membership(may_lack ? named_b.value : written_b);
  if (bare(a) == bare(b)) return true;
  ++nesting;
  const std::string table_a = kind_of_table(a), table_b = kind_of_table(b);
  if (!table_a.empty() || !table_b.empty()) {
    const bool may_match = table_a == table_b || (table_a == "matrix" && table_b.empty()) || (table_b == "matrix" && table_a.empty());
    return may_match && same_matrix(a, b, nesting);
  }
  const auto choice_a = letter_and_text(a), choice_b = letter_and_text(b);
  if (choice_a && !choice_b) return choice_letter(b).empty() ? same(choice_a->second, b, nesting) : choice_letter(b) == choice_a->first;
  if (choice_b && !choice_a) return choice_letter(a).empty() ? same(a, choice_b->second, nesting) : choice_letter(a) == choice_b->first;
  const Worded words_a = read_words(a), words_b = read_words(b);
  const bool have_words = words_a.has_words() || words_b.has_words() || words_a.terms.front() != a || words_b.terms.front() != b;
  // 3 hours and 40 minutes, and not a list
  if (is_quantity(words_a) && is_quantity(words_b)) return same_with_words(words_a, words_b, nesting);
  if (const auto verdict = same_collection(a, b, nesting)) return *verdict;
  if (has_condition(words_a) || has_condition(words_b)) return same_with_words(words_a, words_b, nesting);
  if (read_relation(a) || read_relation(b)) return same_relation(a, b, nesting);
  if (a.find('=') != std::string::npos || b.find('=') != std::string::npos) return same_equations(a, b, nesting);
  if (!choice_letter(a).empty() && choice_letter(a) == choice_letter(b)) return true;
  return have_words ? same_with_words(words_a, words_b, nesting) : same_number_written(a, b);
}

}  // namespace

namespace {

constexpr size_t kLongestAnswer = 100;     // a longer right answer that is no mathematics is a solution that ends with it
constexpr size_t kLongestRead = 20000;     // characters of an answer; a longer one is compared as text

std::string wanted(std::string_view gold) {
  if (const auto box = boxed_answers(gold)) return *box;
  if (gold.size() > kLongestAnswer && !is_mathematical(gold)) return final_answer(gold).value_or(std::string(gold));
  return std::string(gold);
}

// The term of a text that is one, with units at most; nullptr where it is none that can be read.
ExprPtr term_of(const std::string& text) {
  const Worded words = read_words(text);
  const bool is_marked = text.find(kWord) != std::string::npos;
  if (words.has_words() && !(is_quantity(words) && (is_marked || has_known_units(words)))) return nullptr;
  const std::string_view term = words.terms.front();
  return parse_expression(term.ends_with('%') ? term.substr(0, term.size() - 1) : term);
}

}  // namespace

bool same_answer(std::string_view given, std::string_view gold) {
  if (given.size() > kLongestRead || gold.size() > kLongestRead) return trimmed(given) == trimmed(gold) && !trimmed(given).empty();
  return same(normal(given), normal(wanted(gold)), 0);
}

bool can_compare(std::string_view given, std::string_view gold) {
  const auto is_plain = [](std::string_view text) { return bracketed(normal(text)).open == 0 && is_mathematical(text); };
  return is_plain(given) && is_plain(wanted(gold));
}

bool is_mathematical(std::string_view answer) {
  if (answer.size() > kLongestRead) return false;
  const auto box = boxed_answers(answer);
  const std::string text = normal(box ? *box : std::string(answer));
  if (!kind_of_table(text).empty() || bracketed(text).open) return true;
  const auto sides = split_outside_brackets(text, "=");
  return std::all_of(sides.begin(), sides.end(), [](const std::string& side) { return term_of(side) != nullptr; });
}

}  // namespace tandem::reward
