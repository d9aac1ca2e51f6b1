// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/math/hendrycks.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "tandem/base/strings.h"
#include "tandem/reward/math/math_expr.h"

namespace tandem::reward {
namespace {

bool is_integer(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

// \frac12 -> \frac{1}{2}, \frac1{72} -> \frac{1}{72}. A form that cannot be completed leaves the whole text as it was.
std::string with_frac_braces(const std::string& text) {
  constexpr std::string_view kFrac = "\\frac";
  std::string out;
  size_t begin = 0;
  for (size_t at; (at = text.find(kFrac, begin)) != std::string::npos;) {
    out += text.substr(begin, at + kFrac.size() - begin);
    begin = at + kFrac.size();
    const size_t end = std::min(text.find(kFrac, begin), text.size());
    const std::string rest = text.substr(begin, end - begin);
    if (!rest.empty() && rest[0] == '{') continue;
    if (rest.size() < 2) return text;
    out += std::string("{") + rest[0] + "}";
    if (rest[1] == '{')
      begin += 1;
    else {
      out += std::string("{") + rest[1] + "}";
      begin += 2;
    }
  }
  return out + text.substr(begin);
}

std::string with_sqrt_braces(const std::string& text) {
  constexpr std::string_view kSqrt = "\\sqrt";
  std::string out;
  size_t begin = 0;
  for (size_t at; (at = text.find(kSqrt, begin)) != std::string::npos;) {
    out += text.substr(begin, at + kSqrt.size() - begin);
    begin = at + kSqrt.size();
    if (begin >= text.size() || text[begin] == '{') continue;
    out += std::string("{") + text[begin++] + "}";
  }
  return out + text.substr(begin);
}

std::string slash_as_frac(const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == std::string::npos || text.find('/', slash + 1) != std::string::npos) return text;
  const std::string top = text.substr(0, slash), bottom = text.substr(slash + 1);
  return is_integer(top) && is_integer(bottom) ? "\\frac{" + top + "}{" + bottom + "}" : text;
}

// 1,234 -> 1234 but (1,234) stays a pair.
std::string without_separators(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    auto digit = [&](size_t k) { return k < text.size() && std::isdigit(static_cast<unsigned char>(text[k])); };
    if (text[i] == ',' && i > 0 && digit(i - 1) && digit(i + 1) && digit(i + 2) && digit(i + 3) && !digit(i + 4)) continue;
    out += text[i];
  }
  return out;
}

// The looser normalisation of the symbolic comparison.
std::string symbolic_normal(std::string text) {
  text = trimmed(text);
  if (text.starts_with("\\text{") && text.ends_with('}')) text = text.substr(6, text.size() - 7);
  for (const char* gone : {"\\%", "\\$", "$", "%", "\\left", "\\right", "\\!", "\\,", "\\;", "^{\\circ}", "^\\circ", "\\ "})
    text = replaced(text, gone, "");
  text = replaced(replaced(text, " or ", " , "), " and ", " , ");
  text = replaced(replaced(text, "million", "*10^6"), "billion", "*10^9");
  for (const char* unit :
       {"degrees", "degree", "centimeters", "centimeter", "meters", "meter", "miles", "mile", "seconds", "second",
        "minutes", "minute", "hours",       "hour",       "days",   "day",   "weeks", "week", "months",  "month",
        "years",   "year",   "feet",        "foot",       "inches", "inch",  "yards", "yard", "cm"})
    text = replaced(text, unit, "");
  text = replaced(replaced(text, "tfrac", "frac"), "dfrac", "frac");
  text = trimmed(text);
  if (text.size() > 1 && text.front() == '{' && text.back() == '}') text = text.substr(1, text.size() - 2);
  std::erase_if(text, [](unsigned char c) { return std::isspace(c); });
  return lower_ascii(without_separators(text));
}

std::vector<std::string> tuple_parts(const std::string& text) {
  const bool bracketed = text.size() > 2 && (text[0] == '(' || text[0] == '[') && (text.back() == ')' || text.back() == ']');
  if (!bracketed || text.find_first_of("()[]", 1) != text.size() - 1) return {text};
  const auto parts = split(std::string_view(text).substr(1, text.size() - 2), ',');
  return {parts.begin(), parts.end()};
}

bool is_plain_fraction(const std::string& text) {
  const std::string braced = text.starts_with('-') ? text.substr(1) : text;
  if (braced.starts_with("\\frac{") && braced.ends_with('}')) {
    const size_t middle = braced.find("}{");
    return middle != std::string::npos && is_integer(braced.substr(6, middle - 6)) &&
           is_integer(braced.substr(middle + 2, braced.size() - middle - 3));
  }
  const size_t slash = braced.find('/');
  return slash != std::string::npos && is_integer(braced.substr(0, slash)) && is_integer(braced.substr(slash + 1));
}

}  // namespace

std::optional<std::string> last_boxed(std::string_view text) {
  size_t at = text.rfind("\\boxed");
  if (at == std::string_view::npos) at = text.rfind("\\fbox");
  if (at == std::string_view::npos) return std::nullopt;
  int depth = 0;
  for (size_t i = at; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && --depth == 0) return std::string(text.substr(at, i + 1 - at));
  }
  return std::nullopt;
}

std::optional<std::string> inside_box(std::string_view boxed) {
  if (!boxed.starts_with("\\boxed{") || !boxed.ends_with('}')) return std::nullopt;
  return std::string(boxed.substr(7, boxed.size() - 8));
}

std::optional<std::string> boxed_answer(std::string_view text) {
  const auto boxed = last_boxed(text);
  if (!boxed) return std::nullopt;
  if (boxed->starts_with("\\fbox{")) return boxed->substr(6, boxed->size() - 7);
  return inside_box(*boxed);
}

std::string hendrycks_normal(std::string s) {
  for (const char* gone : {"\n", "\\!"}) s = replaced(s, gone, "");
  s = replaced(s, "\\\\", "\\");
  s = replaced(replaced(s, "tfrac", "frac"), "dfrac", "frac");
  for (const char* gone : {"\\left", "\\right", "^{\\circ}", "^\\circ", "\\$"}) s = replaced(s, gone, "");
  // A trailing unit: only where there is exactly one `\text{ `.
  const size_t unit = s.find("\\text{ ");
  if (unit != std::string::npos && s.find("\\text{ ", unit + 1) == std::string::npos) s = s.substr(0, unit);
  for (const char* gone : {"\\%", "%"}) s = replaced(s, gone, "");
  s = replaced(replaced(s, " .", " 0."), "{.", "{0.");
  if (s.empty()) return s;
  if (s[0] == '.') s = "0" + s;
  const size_t equals = s.find('=');
  if (equals != std::string::npos && s.find('=', equals + 1) == std::string::npos && equals <= 2) s = s.substr(equals + 1);
  s = with_frac_braces(replaced(with_sqrt_braces(s), " ", ""));
  if (s == "0.5") s = "\\frac{1}{2}";
  return slash_as_frac(s);
}

bool hendrycks_equal(std::string_view a, std::string_view b) {
  return hendrycks_normal(std::string(a)) == hendrycks_normal(std::string(b));
}

std::string mathd_normal(std::string_view text) {
  std::string inner = trimmed(text);
  if (inner.starts_with("\\text{") && inner.ends_with('}')) inner = trimmed(std::string_view(inner).substr(6, inner.size() - 7));
  return hendrycks_normal(inner);
}

bool symbolic_equal(std::string_view given_text, std::string_view gold_text) {
  const std::string given = symbolic_normal(std::string(given_text)), gold = symbolic_normal(std::string(gold_text));
  if (gold == given) return true;
  if (given.empty() || gold.empty()) return false;
  const std::vector<std::string> given_parts = tuple_parts(given), gold_parts = tuple_parts(gold);
  if (gold_parts.size() != given_parts.size()) return false;
  if (gold_parts.size() > 1 && (gold.front() != given.front() || gold.back() != given.back())) return false;
  for (size_t i = 0; i < gold_parts.size(); ++i) {
    if (gold_parts[i] == given_parts[i]) continue;
    if (is_plain_fraction(gold_parts[i]) && is_plain_fraction(given_parts[i])) return false;
    if (is_integer(gold_parts[i]) != is_integer(given_parts[i])) return false;
    const ExprPtr a = parse_expression(given_parts[i]), b = parse_expression(gold_parts[i]);
    if (!a || !b || !same_value(*a, *b)) return false;
  }
  return true;
}

bool mathd_or_symbolic_equal(std::string_view given, std::string_view gold) {
  return mathd_normal(given) == mathd_normal(gold) || symbolic_equal(given, gold);
}

}  // namespace tandem::reward
