// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/math/formula.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "tandem/base/strings.h"

namespace tandem::reward {
namespace {

constexpr size_t kNowhere = std::string_view::npos;

bool blank_at(std::string_view text, size_t at) { return at < text.size() && std::isspace(static_cast<unsigned char>(text[at])); }
bool digit_at(std::string_view text, size_t at) { return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])); }

// The next dollar sign from `at` on that no backslash escapes.
size_t next_dollar(std::string_view text, size_t at) {
  for (at = text.find('$', at); at != kNowhere && at > 0 && text[at - 1] == '\\';) at = text.find('$', at + 1);
  return at;
}

// A command of LaTeX, such as \frac or \{. Prose may hold \$, \% and formulas in \( \) or \[ \].
bool has_command(std::string_view text) {
  for (size_t at = text.find('\\'); at != kNowhere && at + 1 < text.size(); at = text.find('\\', at + 2))
    if (std::string_view("$%()[]").find(text[at + 1]) == kNowhere) return true;
  return false;
}

bool is_stop(char c) { return std::string_view(",.;:?!").find(c) != kNowhere; }

// Words of two letters or more between blanks.
int num_words(std::string_view text) {
  int count = 0;
  size_t letters = 0;
  bool is_word = true;
  for (size_t at = 0; at <= text.size(); ++at) {
    if (at == text.size() || blank_at(text, at)) {
      count += is_word && letters > 1;
      letters = 0, is_word = true;
    } else if (std::isalpha(static_cast<unsigned char>(text[at]))) {
      ++letters;
    } else {
      is_word = is_word && is_stop(text[at]);
    }
  }
  return count;
}

// `12/3 =` and `+ 6` are parts of a sum of amounts; `0^+` is whole.
bool wants_an_operand(std::string_view inner) {
  constexpr std::string_view kEither[] = {"+", "*", "/", "=", "\xC3\x97", "\xC3\xB7", "\\times", "\\cdot", "\\div"};
  constexpr std::string_view kLast[] = {"-", "<", "("};
  const auto ends = [&](std::string_view sign) {
    return inner.ends_with(sign) && !inner.substr(0, inner.size() - sign.size()).ends_with('^');
  };
  return std::ranges::any_of(kEither, [&](std::string_view sign) { return inner.starts_with(sign) || ends(sign); }) ||
         std::ranges::any_of(kLast, ends);
}

// `whole` stands between two single dollar signs, `behind` follows them. As pandoc tells formulas from money, a closing sign stands
// before no digit; besides, prose and half a sum are no formula.
bool is_formula(std::string_view whole, std::string_view inner, std::string_view behind) {
  if (wants_an_operand(inner)) return false;
  if (has_command(inner)) return true;
  const bool apart = blank_at(whole, 0) && blank_at(behind, 0);  // `$ 5 and $ 6`
  if (digit_at(behind, apart ? 1 : 0) || (behind.starts_with('.') && digit_at(behind, 1)) || behind.starts_with("<<")) return false;
  const bool leans = blank_at(whole, 0) != blank_at(whole, whole.size() - 1);  // `5 and ` or `5, `
  if ((leans ? whole : inner).find('\n') != kNowhere || (leans && is_stop(inner.back()))) return false;
  return num_words(inner) < (leans ? 1 : 2);
}

}  // namespace

std::optional<Formula> formula_at_dollar(std::string_view text, size_t open) {
  const bool is_double = text.substr(open).starts_with("$$");
  const size_t begin = open + (is_double ? 2 : 1);
  const size_t close = is_double ? text.find("$$", begin) : next_dollar(text, begin);
  if (close == kNowhere) return std::nullopt;
  const std::string_view whole = text.substr(begin, close - begin);
  const std::string inner = trimmed(whole);
  const size_t end = close + begin - open;
  if (inner.empty() || (!is_double && !is_formula(whole, inner, text.substr(end)))) return std::nullopt;
  return Formula{inner, end};
}

std::string last_formula(std::string_view text) {
  std::string found;
  size_t last = 0;
  for (size_t at = next_dollar(text, 0); at != kNowhere;) {
    const auto formula = formula_at_dollar(text, at);
    if (formula) found = formula->inner, last = formula->end;
    at = next_dollar(text, formula ? formula->end : at + 1);
  }
  for (const auto& [open, close] : {std::pair<std::string_view, std::string_view>("\\(", "\\)"), {"\\[", "\\]"}}) {
    const size_t end = text.rfind(close);
    if (end == kNowhere || end == 0 || end < last) continue;
    const size_t begin = text.rfind(open, end - 1);
    if (begin == kNowhere || begin + open.size() > end) continue;
    const std::string inner = trimmed(text.substr(begin + open.size(), end - begin - open.size()));
    if (inner.empty()) continue;
    last = end;
    found = inner;
  }
  return found;
}

}  // namespace tandem::reward
