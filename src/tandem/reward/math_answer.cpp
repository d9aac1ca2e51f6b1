// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/math_answer.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "tandem/reward/hendrycks.h"
#include "tandem/reward/math_expr.h"
#include "tandem/text/regex.h"
#include "tandem/text/unicode.h"

namespace tandem::reward {
namespace {

constexpr int kMaxNesting = 8;
constexpr std::string_view kRowBreak = "\x01";  // stands for a double backslash, whose second half would look like a command

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)); }

// The brackets of tuples, intervals and sets; the braces of LaTeX only group.
bool opens(const std::string& text, size_t at) {
  return text[at] == '(' || text[at] == '[' || (text[at] == '{' && at > 0 && text[at - 1] == '\\');
}
bool closes(const std::string& text, size_t at) {
  return text[at] == ')' || text[at] == ']' || (text[at] == '}' && at > 0 && text[at - 1] == '\\');
}

std::string last_match(const text::Regex& pattern, std::string_view text) {
  std::string found;
  for (text::Regex::Scan scan(pattern, text); scan.next();) found = scan.text(1);
  return found;
}

// 1{,}000 and 1,\!000 are numbers wherever they stand: nobody writes the comma of a list so.
std::string without_tight_commas(const std::string& text) {
  static const text::Regex kTight(R"((?<=\d)(?:\{,\}|,\\!)(?=\d{3}(?!\d)))", "math rule", text::Regex::Effort::kTrusted);
  std::string out;
  size_t begin = 0;
  for (text::Regex::Scan scan(kTight, text); scan.next(); begin = scan.group().end) out += text.substr(begin, scan.group().begin - begin);
  return out + text.substr(begin);
}

// 12,345 is a number. In brackets a comma separates, as in (20,100); what stands in them is read member by member.
std::string without_thousands(const std::string& text) {
  static const text::Regex kThousands(R"((?<![\d.,])\d{1,3}(?:,\d{3})++(?!,?\d))", "math rule", text::Regex::Effort::kTrusted);
  std::string out;
  size_t begin = 0;
  int depth = 0;
  for (text::Regex::Scan scan(kThousands, text); scan.next();) {
    const text::Span span = scan.group();
    for (size_t i = begin; i < span.end; ++i) {
      if (opens(text, i)) ++depth;
      if (closes(text, i)) --depth;
      if (text[i] != ',' || i < span.begin || depth > 0) out += text[i];
    }
    begin = span.end;
  }
  return out + text.substr(begin);
}

// `\,` and its like are a blank before a letter, so that `5\,m` keeps its unit apart, and nothing elsewhere.
std::string without_thin_spaces(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool thin = text[i] == '\\' && i + 1 < text.size() && std::string_view(",;:").find(text[i + 1]) != std::string_view::npos;
    if (!thin) {
      out += text[i];
      continue;
    }
    ++i;
    if (i + 1 < text.size() && std::isalpha(static_cast<unsigned char>(text[i + 1]))) out += ' ';
  }
  return out;
}

// \text{...} in an answer is a unit if something stands before it, and the answer itself if not.
std::string without_text_groups(std::string text) {
  for (const char* command : {"\\text{", "\\mbox{", "\\textbf{", "\\textit{", "\\mathrm{", "\\operatorname{", "\\mathbf{"}) {
    const std::string_view name(command);
    for (size_t at; (at = text.find(name)) != std::string::npos;) {
      const size_t end = text.find('}', at);
      if (end == std::string::npos) break;
      const std::string inner = text.substr(at + name.size(), end - at - name.size()), before = trimmed(text.substr(0, at)),
                        word = trimmed(inner);
      const bool joins = word == "and" || word == "or";
      const bool unit = !before.empty() &&
                        (is_digit(before.back()) || before.back() == '}' || before.back() == ')' || before.ends_with("\\pi"));
      std::string rest = text.substr(end + 1);
      if (unit && !joins && (rest.starts_with("^2") || rest.starts_with("^3"))) rest = rest.substr(2);
      if (unit && !joins && (rest.starts_with("^{2}") || rest.starts_with("^{3}"))) rest = rest.substr(4);
      text = text.substr(0, at) + (joins ? "," : unit ? "" : inner) + rest;
    }
  }
  return text;
}

// Short units need a blank before them: 3m is three times m.
std::string without_units(std::string text) {
  static const text::Regex kUnit(
      R"((?x)^(.*[\d})])(?:[\s~]*(?:
          degrees?|dollars?|cents?|percent|units?|square\ units?|cubic\ units?|
          (?:inches|inch|feet|foot|meters?|centimeters?|kilometers?|miles?|hours?|minutes?|seconds?|days?|weeks?|
             years?|pounds?|lbs|grams?|mph|ways|points?|people|students)
          (?:\s*\^\{?[23]\}?)?
          )|[\s~]+(?:cm|mm|km|ft|in|m|mi|lb|kg)(?:\s*\^\{?[23]\}?)?)\.?$)",
      "math rule", text::Regex::Effort::kTrusted);
  text::Regex::Scan scan(kUnit, text);
  return scan.next() ? scan.text(1) : text;
}

std::string normal(std::string_view answer) {
  std::string s = text::is_utf8(answer) ? std::string(answer) : text::repair_utf8(answer);
  s = without_thin_spaces(without_tight_commas(replaced(s, "\\\\", kRowBreak)));
  s = replaced(replaced(replaced(s, "\xE2\x88\x92", "-"), "\xC2\xB0", ""), "\xCF\x80", "\\pi ");
  s = replaced(replaced(replaced(s, "\xC3\x97", "\\times "), "\xE2\x88\x9E", "\\infty "), "\xE2\x88\x9A", "\\sqrt ");
  for (const char* gone : {"\\!", "\\displaystyle", "\\left", "\\right", "\\bigl", "\\bigr", "\\big", "\\Big", "\\$", "$", "^{\\circ}",
                           "^\\circ", "\\circ", "\\(", "\\)"})
    s = replaced(s, gone, "");
  for (const char* blank : {"\\ ", "\\qquad", "\\quad"}) s = replaced(s, blank, " ");
  s = replaced(s, "{,}", ",");
  s = replaced(replaced(s, "\\dfrac", "\\frac"), "\\tfrac", "\\frac");
  s = replaced(replaced(replaced(s, "\\lvert", "|"), "\\rvert", "|"), "\\vert", "|");
  s = replaced(replaced(replaced(s, "\\leq", "\\le"), "\\geq", "\\ge"), "\\%", "%");
  s = without_units(trimmed(without_text_groups(s)));
  while (!s.empty() && (s.back() == '.' || s.back() == ',' || s.back() == ';' || s.back() == ':')) s.pop_back();
  return trimmed(without_thousands(trimmed(s)));
}

std::vector<std::string> split_outside_brackets(const std::string& text, std::string_view separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (depth == 0 && text.compare(i, separator.size(), separator) == 0) {
      parts.emplace_back();
      i += separator.size();
      continue;
    }
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    parts.back() += c;
    ++i;
  }
  for (std::string& part : parts) part = trimmed(part);
  return parts;
}

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

bool same_in_any_order(const std::vector<std::string>& a, std::vector<std::string> b, int nesting) {
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

struct Bracketed {
  char open = 0, close = 0;
  std::string inner;
};

// The whole text in one pair of brackets; sets keep `\{`.
Bracketed bracketed(const std::string& text) {
  if (text.starts_with("\\{") && text.ends_with("\\}")) return {'{', '}', text.substr(2, text.size() - 4)};
  if (text.size() < 2 || (text[0] != '(' && text[0] != '[')) return {};
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '(' || text[i] == '[') ++depth;
    if ((text[i] == ')' || text[i] == ']') && --depth == 0)
      return i + 1 == text.size() ? Bracketed{text[0], text.back(), text.substr(1, text.size() - 2)} : Bracketed{};
  }
  return {};
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

bool same_scalar(const std::string& a, const std::string& b) {
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

bool same(const std::string& a, const std::string& b, int nesting) {
  if (nesting > kMaxNesting || a.empty() || b.empty()) return false;
  if (a == b) return true;
  if (is_matrix(a) && is_matrix(b)) return same_matrix(a, b, nesting + 1);
  const auto unions_a = split_outside_brackets(a, "\\cup"), unions_b = split_outside_brackets(b, "\\cup");
  if (unions_a.size() > 1 || unions_b.size() > 1) return same_in_any_order(unions_a, unions_b, nesting + 1);
  const Bracketed box_a = bracketed(a), box_b = bracketed(b);
  const auto inner_a = members(box_a.inner), inner_b = members(box_b.inner);
  if (box_a.open == '{' && box_b.open == '{') return same_in_any_order(with_both_signs(inner_a), with_both_signs(inner_b), nesting + 1);
  if (box_a.open && box_b.open && (inner_a.size() > 1 || inner_b.size() > 1))
    return box_a.open == box_b.open && box_a.close == box_b.close && same_in_order(inner_a, inner_b, nesting + 1);
  const auto list_a = with_both_signs(split_outside_brackets(a, ",")), list_b = with_both_signs(split_outside_brackets(b, ","));
  if (list_a.size() > 1 || list_b.size() > 1) return same_in_any_order(list_a, list_b, nesting + 1);
  const auto sides_a = split_outside_brackets(a, "="), sides_b = split_outside_brackets(b, "=");
  if (sides_a.size() == 2 && sides_b.size() == 2)
    return same(sides_a[1], sides_b[1], nesting + 1) ? sides_a[0] == sides_b[0] || same_equation(sides_a, sides_b)
                                                     : same_equation(sides_a, sides_b);
  // `x = 5` means 5, and the last member of a chain of equations is its result.
  if (sides_a.size() > 1 && sides_b.size() == 1) return same(sides_a.back(), b, nesting + 1);
  if (sides_b.size() == 2 && sides_a.size() == 1) return same(a, sides_b.back(), nesting + 1);
  if (!choice_letter(a).empty() && choice_letter(a) == choice_letter(b)) return true;
  return same_scalar(a, b) || lower_without_spaces(a) == lower_without_spaces(b);
}

// The end of the sentence or line that begins at `begin`; a full stop within a leading $...$ ends nothing.
size_t sentence_end(std::string_view text, size_t begin) {
  size_t at = begin + 1;
  if (text[begin] == '$')
    if (const size_t close = text.find_first_of("$\n", at); close != std::string_view::npos && text[close] == '$') at = close + 1;
  for (; at < text.size() && text[at] != '\n'; ++at)
    if (text[at] == '.' && (at + 1 == text.size() || std::isspace(static_cast<unsigned char>(text[at + 1])))) break;
  return at;
}

// What follows the last "answer is", "answer:" or "####"; "" if nothing does. Linear in the text: every gap is possessive.
std::string last_announced(std::string_view response) {
  static const text::Regex kAnnounced(R"((?i)(?:answer\s*+(?:is|:|=)|####)\s*+:?+\s*+(?:\*\*)?+\s*+(?=\S))", "math rule",
                                      text::Regex::Effort::kTrusted);
  std::string found;
  size_t end = 0;
  for (text::Regex::Scan scan(kAnnounced, response); scan.next();) {
    if (scan.group().begin < end) continue;  // within the answer before
    const size_t begin = scan.group().end;
    end = sentence_end(response, begin);
    std::string answer = trimmed(response.substr(begin, end - begin));
    if (answer.ends_with("**")) answer = trimmed(std::string_view(answer).substr(0, answer.size() - 2));
    if (!answer.empty()) found = std::move(answer);
  }
  return found;
}

}  // namespace

std::optional<std::string> final_answer(std::string_view response) {
  std::string repaired;
  if (!text::is_utf8(response)) response = repaired = text::repair_utf8(response);
  if (const auto boxed = boxed_answer(response)) return boxed;
  if (const size_t open = response.rfind("<answer>"), close = response.rfind("</answer>");
      open != std::string_view::npos && close != std::string_view::npos && open < close)
    return trimmed(response.substr(open + 8, close - open - 8));
  if (const std::string announced = last_announced(response); !announced.empty()) return announced;
  static const text::Regex kDollars(R"(\$([^$]+)\$)", "math rule", text::Regex::Effort::kTrusted);
  static const text::Regex kNumber(R"((-?(?:\d[\d,]*\.?\d*|\.\d+)(?:/\d+)?%?))", "math rule", text::Regex::Effort::kTrusted);
  for (const text::Regex* pattern : {&kDollars, &kNumber}) {
    const std::string found = trimmed(last_match(*pattern, response));
    if (!found.empty()) return found;
  }
  return std::nullopt;
}

bool same_answer(std::string_view given, std::string_view gold) {
  const auto gold_box = boxed_answer(gold);
  const std::string a = normal(given), b = normal(gold_box ? *gold_box : std::string(gold));
  if (same(a, b, 0)) return true;
  return !trimmed(given).empty() && hendrycks_equal(trimmed(given), trimmed(gold_box ? *gold_box : std::string(gold)));
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
