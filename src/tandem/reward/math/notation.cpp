// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/math/notation.h"

#include <algorithm>
#include <cctype>

#include "tandem/base/strings.h"
#include "tandem/reward/math/relation.h"
#include "tandem/text/regex.h"
#include "tandem/text/unicode.h"

namespace tandem::reward {
namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)); }

// The brackets of tuples, intervals and sets; the braces of LaTeX only group.
bool opens(const std::string& text, size_t at) {
  return text[at] == '(' || text[at] == '[' || (text[at] == '{' && at > 0 && text[at - 1] == '\\');
}
bool closes(const std::string& text, size_t at) {
  return text[at] == ')' || text[at] == ']' || (text[at] == '}' && at > 0 && text[at - 1] == '\\');
}

// 1{,}000 and 1,\!000 are numbers wherever they stand: nobody writes the comma of a list so.
std::string without_tight_commas(const std::string& text) {
  static const text::Regex kTight(R"((?<=\d)(?:\{,\}|,\\!\s?)(?=\d{3}(?!\d)))", "math rule", text::Regex::Effort::kTrusted);
  std::string out;
  size_t begin = 0;
  for (text::Regex::Scan scan(kTight, text); scan.next(); begin = scan.group().end) out += text.substr(begin, scan.group().begin - begin);
  return out + text.substr(begin);
}


// `\,` and its like become a blank before a letter, so that `5\,m` keeps its unit apart. Elsewhere they go.
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
  for (const char* command : {"\\text{", "\\mbox{", "\\textbf{", "\\textit{", "\\textnormal{", "\\textrm{", "\\mathrm{",
                              "\\operatorname{", "\\mathbf{"}) {
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


// `19, 46, and 82`, `(11,7)or(7,11)` and `1; 2` are lists.
std::string with_commas(const std::string& text) {
  static const text::Regex kWord(R"((?:,\s*)?(?<=[\d)\]}\s,])\b(?:and|or)\b(?=[\s\d(\[{\\$-]))", "math rule",
                                 text::Regex::Effort::kTrusted);
  std::string out;
  size_t begin = 0;
  for (text::Regex::Scan scan(kWord, text); scan.next(); begin = scan.group().end) {
    out += trimmed(text.substr(begin, scan.group().begin - begin));
    if (!out.empty() && out.back() != ',') out += ",";
    out += " ";
  }
  static const text::Regex kGap(R"(,\s*+(?=,))", "math rule", text::Regex::Effort::kTrusted);
  const std::string listed = replaced(out + text.substr(begin), ";", ",");
  out.clear();
  begin = 0;
  for (text::Regex::Scan scan(kGap, listed); scan.next(); begin = scan.group().end) out += listed.substr(begin, scan.group().begin - begin);
  return out + listed.substr(begin);
}

// 1/3 \approx 0.33 is 1/3; x \approx 11 is 11.
std::string exact_side(const std::string& text) {
  const std::string plain = replaced(text, "\xE2\x89\x88", "\\approx");
  const size_t at = plain.find("\\approx");
  if (at == std::string::npos) return text;
  const std::string before = trimmed(plain.substr(0, at));
  return before.empty() || is_symbol(before) ? trimmed(plain.substr(at + 7)) : before;
}

// A whole text in braces that only group, and a matrix set as an array in brackets.
std::string without_wrapping(std::string text) {
  while (text.size() > 1 && text[0] == '{' && text.back() == '}' && text[text.size() - 2] != '\\') {
    int depth = 0;
    size_t i = 0;
    for (; i < text.size(); ++i) {
      if (text[i] == '{') ++depth;
      if (text[i] == '}' && --depth == 0) break;
    }
    if (i + 1 != text.size()) break;
    text = trimmed(text.substr(1, text.size() - 2));
  }
  const size_t array = text.find("\\begin{array}{");
  const size_t end = array == std::string::npos || array > 1 ? std::string::npos : text.find('}', array + 15);
  if (end == std::string::npos) return text;
  text = "\\begin{matrix}" + replaced(text.substr(end + 1), "\\end{array}", "\\end{matrix}");
  if (text.ends_with("]") || text.ends_with(")")) text.pop_back();
  return text;
}

}  // namespace

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

// Short units need a blank before them: 3m is three times m.
std::string without_units(std::string text) {
  static const text::Regex kUnit(
      R"((?x)^(.*[\d})])(?:[\s~]*(?:
          degrees?|dollars?|cents?|percent(?:age)?|pct|units?|square\ units?|cubic\ units?|
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
  // Outside a matrix a double backslash is one that was escaped once too often.
  s = replaced(s, "\\\\", s.find("\\begin{") == std::string::npos ? "\\" : kRowBreak);
  s = without_thin_spaces(without_tight_commas(s));
  s = replaced(replaced(replaced(s, "\xE2\x88\x92", "-"), "\xC2\xB0", ""), "\xCF\x80", "\\pi ");
  s = replaced(replaced(replaced(s, "\xC3\x97", "\\times "), "\xE2\x88\x9E", "\\infty "), "\xE2\x88\x9A", "\\sqrt ");
  for (const char* gone : {"\\!", "\\displaystyle", "\\left", "\\right", "\\bigl", "\\bigr", "\\big", "\\Big", "\\$", "$", "^{\\circ}",
                           "^\\circ", "\\circ", "\\(", "\\)"})
    s = replaced(s, gone, "");
  for (const char* blank : {"\\ ", "\\qquad", "\\quad"}) s = replaced(s, blank, " ");
  s = replaced(s, "{,}", ",");
  s = replaced(replaced(s, "\\dfrac", "\\frac"), "\\tfrac", "\\frac");
  s = replaced(replaced(replaced(s, "\\lvert", "|"), "\\rvert", "|"), "\\vert", "|");
  s = exact_side(with_commas(without_text_groups(with_plain_signs(replaced(s, "\\%", "%")))));
  s = without_units(without_wrapping(trimmed(s)));
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

}  // namespace tandem::reward
