// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/math/words.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <string_view>

#include "tandem/base/strings.h"
#include "tandem/reward/math/math_expr.h"
#include "tandem/reward/math/notation.h"

namespace tandem::reward {
namespace {

using Words = std::vector<std::string>;

std::string in_lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

struct Unit {
  char kind;           // units of one kind can be changed into each other
  const char* factor;  // to the smallest of them here
};
using Units = std::map<std::string_view, Unit>;
const Units& units() {
  static const Units table = {
      {"mm", {'l', "1"}},        {"cm", {'l', "10"}},        {"m", {'l', "1000"}},     {"km", {'l', "1000000"}}, {"inch", {'l', "25.4"}},
      {"foot", {'l', "304.8"}},  {"yard", {'l', "914.4"}},   {"mile", {'l', "1609344"}}, {"second", {'t', "1"}}, {"minute", {'t', "60"}},
      {"hour", {'t', "3600"}},   {"day", {'t', "86400"}},    {"week", {'t', "604800"}}, {"month", {'M', "1"}},   {"year", {'M', "12"}},
      {"mg", {'w', "1"}},        {"gram", {'w', "1000"}},    {"kg", {'w', "1000000"}}, {"ounce", {'o', "1"}},    {"pound", {'o', "16"}},
      {"ton", {'T', "1"}},       {"ml", {'v', "1"}},         {"liter", {'v', "1000"}}, {"cup", {'c', "1"}},      {"pint", {'c', "2"}},
      {"quart", {'c', "4"}},     {"gallon", {'c', "16"}},    {"cent", {'d', "1"}},     {"dollar", {'d', "100"}}, {"euro", {'e', "1"}},
      {"sterling", {'s', "1"}},  {"rupee", {'r', "1"}},      {"yen", {'y', "1"}},      {"celsius", {'C', "1"}},  {"fahrenheit", {'F', "1"}},
      {"mph", {'p', "1"}},       {"radian", {'R', "1"}}};
  return table;
}

// Short forms, other spellings and plurals that no rule gives; the value is the usual name.
const std::map<std::string_view, std::string_view>& usual_names() {
  static const std::map<std::string_view, std::string_view> table = {
      {"centimeter", "cm"},  {"centimetre", "cm"}, {"millimeter", "mm"}, {"millimetre", "mm"}, {"meter", "m"},       {"metre", "m"},
      {"kilometer", "km"},   {"kilometre", "km"},  {"in", "inch"},       {"inche", "inch"},    {"ft", "foot"},       {"feet", "foot"},
      {"yd", "yard"},        {"mi", "mile"},       {"sec", "second"},    {"s", "second"},      {"min", "minute"},    {"hr", "hour"},
      {"h", "hour"},         {"g", "gram"},        {"kilogram", "kg"},   {"milligram", "mg"},  {"lb", "pound"},      {"oz", "ounce"},
      {"litre", "liter"},    {"l", "liter"},       {"milliliter", "ml"}, {"usd", "dollar"},    {"buck", "dollar"},   {"eur", "euro"},
      {"r", "remainder"},    {"rem", "remainder"}, {"a.m", "am"},        {"p.m", "pm"},        {"c", "celsius"},     {"f", "fahrenheit"},
      {"people", "person"},  {"children", "child"}, {"men", "man"},      {"women", "woman"},   {"square", "^2"},
      {"sq", "^2"},          {"cubic", "^3"},      {"cu", "^3"},         {"whenever", "when"},
      {"rs", "rupee"},       {"inr", "rupee"},     {"rad", "radian"},    {"pct", "percent"},   {"percentage", "percent"},
      {"modulo", "mod"},     {"wk", "week"},       {"yr", "year"},       {"mo", "month"},      {"approximately", "about"}};
  return table;
}

// Powers of ten, and what counts by the dozen.
const std::map<std::string_view, std::string_view>& scales() {
  static const std::map<std::string_view, std::string_view> table = {
      {"hundred", "10^2"}, {"thousand", "10^3"}, {"million", "10^6"}, {"billion", "10^9"}, {"trillion", "10^12"}, {"dozen", "12"}};
  return table;
}

bool is_condition(std::string_view word) { return is_one_of(word, {"if", "when", "where", "for", "unless", "otherwise", "except",
    "provided", "given"}); }

// Words that change what a number says: they never go.
bool carries_meaning(std::string_view word) {
  return is_condition(word) || scales().contains(word) ||
         is_one_of(word, {"to",     "through", "till",    "until",   "from",      "between",    "remainder", "mod",      "not",     "no",
                      "less",   "fewer",   "least",   "most",    "than",      "is",         "are",       "or",       "am",      "pm",
                      "noon",   "midnight", "plus",   "minus",   "half",      "halve",      "third",     "quarter",  "fourth",  "fifth",
                      "sixth",  "seventh", "eighth",  "ninth",   "tenth",     "hundredth",  "thousandth", "millionth", "base",   "bc",
                      "bce",    "below",   "even",    "odd",     "negative",  "january",    "february",  "march",    "april",   "may",
                      "june",   "july",    "august",  "september", "october", "november",   "december"});
}

bool is_filler(std::string_view word) {
  return is_one_of(word, {"the", "a", "an", "unit", "about", "exactly", "and", "total", "in", "answer", "with"});
}

// Words that stand outside \text: longer ones, and short ones that spell no product of variables.
bool is_plain_word(std::string_view word, bool behind_a_number, bool blank_before) {
  const std::string known = in_lower_case(word);
  if (is_one_of(known, {"sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln",
      "log", "exp", "abs", "pi", "inf", "infinity", "frac", "pm"}))
    return known == "pm" && behind_a_number;
  if (word.size() >= 4) return true;
  if (is_one_of(known, {"to", "if", "for", "or", "and", "rem", "when", "no", "not", "is", "are", "the", "of", "out", "mod", "all", "any",
      "yes", "odd"}))
    return true;
  if (is_one_of(known, {"am", "mph", "day", "sq", "usd", "ft", "km", "cm", "mm", "kg", "lbs", "lb", "oz", "cup", "ton", "way", "men",
      "th", "sec", "min", "hrs", "hr", "pct"}) && behind_a_number)
    return true;
  return is_one_of(word, {"in", "mi", "m"}) && behind_a_number && blank_before;  // 3m is three times m
}

std::string usual_name(std::string word) {
  word = in_lower_case(word);
  while (!word.empty() && word.back() == '.') word.pop_back();
  const auto known = [&]() -> std::optional<std::string> {
    const auto found = usual_names().find(word);
    return found == usual_names().end() ? std::nullopt : std::optional(std::string(found->second));
  };
  if (const auto name = known()) return *name;
  if (word.size() > 2 && word.ends_with('s') && !word.ends_with("ss") && word != "times") word.pop_back();
  return known().value_or(word);
}

// `4 million` and `50 percent` are terms; `the` and its like say nothing.
void fold(Worded& text) {
  for (size_t i = 0; i < text.words.size(); ++i) {
    Words& words = text.words[i];
    std::string& term = text.terms[i];
    while (!term.empty() && !words.empty() && scales().contains(words.front()) && parse_expression(term)) {
      term = "(" + term + ")*" + std::string(scales().find(words.front())->second);
      words.erase(words.begin());
    }
    if (!term.empty() && !words.empty() && words.front() == "percent" && !term.ends_with('%')) term += "%";
    for (const auto& [word, power] : {std::pair{"squared", "^2"}, {"cubed", "^3"}}) {  // 5 squared, and 5 meters squared
      if (!term.empty() && !words.empty() && words.front() == word) {
        term = "(" + term + ")" + power;
        words.erase(words.begin());
      }
      std::ranges::replace(words, std::string(word), std::string(power));
    }
    std::erase_if(words, is_filler);
  }
  while (!text.words.empty() && text.words.back().empty() && text.terms.back().empty()) text.words.pop_back(), text.terms.pop_back();
  while (!text.words.empty() && text.words.front().empty() && text.terms.front().empty())
    text.words.erase(text.words.begin()), text.terms.erase(text.terms.begin());
}

const Unit* unit_of(const Words& words) {
  const Unit* found = nullptr;
  for (const std::string& word : words)
    if (const auto unit = units().find(word); unit != units().end()) {
      if (found) return nullptr;  // miles an hour
      found = &unit->second;
    }
  return found && std::ranges::find(words, "per") == words.end() ? found : nullptr;
}

// 3 hours 40 minutes is 220 minutes.
void add_up(Worded& text) {
  if (text.words.size() < 2 || text.terms.size() != text.words.size() + 1 || !text.terms.back().empty()) return;
  const Unit* last = text.words.back().size() == 1 ? unit_of(text.words.back()) : nullptr;
  if (!last) return;
  std::string sum;
  for (size_t i = 0; i < text.words.size(); ++i) {
    const Unit* unit = text.words[i].size() == 1 ? unit_of(text.words[i]) : nullptr;
    std::string term = text.terms[i];
    if (i > 0 && term.starts_with(',')) term = trimmed(term.substr(1));
    if (!unit || unit->kind != last->kind || !parse_expression(term)) return;
    sum += (sum.empty() ? "(" : "+(") + term + ")*" + unit->factor + "/" + last->factor;
  }
  text = {{sum, ""}, {text.words.back()}};
}

class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  Worded read() {
    out_.terms.emplace_back();
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\\') {
        take_command();
      } else if (c == kMoney) {
        is_money_ = true;
        ++at_;
      } else if (depth_ == 0 && c == kWord) {
        ++at_;
        take_word(letters_end());
      } else if (depth_ == 0 && is_letter(c) && !is_letter_at(at_ - 1)) {
        const size_t end = letters_end();
        const bool before_noon = is_clock(end);
        if (before_noon || is_plain_word(std::string_view(text_).substr(at_, end - at_), behind_a_number(),
            at_ > 0 && text_[at_ - 1] == ' ') ||
            is_remainder(end) || is_scale_of_degrees(end) || is_behind_per())
          take_word(end);
        else
          term().append(text_, at_, end - at_), at_ = end;
      } else if (depth_ == 0 && c == ':' && !trimmed(term()).empty()) {
        add_word("to");
        ++at_;
      } else {
        if (c == '(' || c == '[' || c == '{') ++depth_;
        if (c == ')' || c == ']' || c == '}') --depth_;
        if (c != kWord) term() += c;
        ++at_;
      }
    }
    finish();
    return std::move(out_);
  }

 private:
  std::string& term() { return out_.terms.back(); }
  bool is_letter_at(size_t at) const { return at < text_.size() && is_letter(text_[at]); }
  size_t letters_end() const {
    size_t end = at_;
    while (end < text_.size() && is_letter(text_[end])) ++end;
    return end;
  }
  bool behind_a_number() {
    const std::string before = trimmed(term());
    if (before.empty()) return out_.words.size() > 0;
    return is_digit(before.back()) || before.back() == '}' || before.back() == ')' || before.back() == kDegree || before.ends_with("\\pi");
  }
  // a.m. and p.m., and p.m without its last stop
  bool is_clock(size_t end) const {
    return end == at_ + 1 && is_one_of(in_lower_case(text_.substr(at_, 3)), {"a.m", "p.m"}) && !is_letter_at(at_ + 3);
  }
  // 5 R 2, and 5R2
  bool is_remainder(size_t end) {
    if (end != at_ + 1 || (text_[at_] != 'R' && text_[at_] != 'r') || out_.words.size() > 0) return false;
    const auto is_number = [](std::string_view part) {
      return !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return is_digit(c) || c == ' ' || c == '.'; }) &&
             part.find_first_of("0123456789") != std::string_view::npos;
    };
    return is_number(term()) && is_number(std::string_view(text_).substr(end));
  }
  bool is_scale_of_degrees(size_t end) {
    const std::string before = trimmed(term());
    return end == at_ + 1 && (text_[at_] == 'C' || text_[at_] == 'F') && !before.empty() && before.back() == kDegree;
  }
  // the second unit of m/s
  bool is_behind_per() const { return !out_.words.empty() && out_.words.back().back() == "per" && trimmed(out_.terms.back()).empty(); }
  void take_command() {
    size_t end = at_ + 1;
    while (end < text_.size() && is_letter(text_[end])) ++end;
    if (end == at_ + 1 && end < text_.size()) {  // \{ and \}
      if (text_[end] == '{') ++depth_;
      if (text_[end] == '}') --depth_;
      ++end;
    }
    term().append(text_, at_, end - at_);
    at_ = end;
  }
  static bool is_angle_of_a_function(const std::string& term) {
    return std::ranges::any_of(std::initializer_list<const char*>{"sin", "cos", "tan", "cot", "sec", "csc"},
                               [&](const char* name) { return term.find(name) != std::string::npos; });
  }
  void add_word(const std::string& word) {
    if (!trimmed(term()).empty() || out_.words.empty()) {
      out_.words.emplace_back();
      out_.terms.emplace_back();
    }
    out_.words.back().push_back(word);
  }
  void take_word(size_t end) {
    std::string word = text_.substr(at_, end - at_);
    if (is_clock(end)) end = at_ + 3, word = text_.substr(at_, 3);
    if (end < text_.size() && text_[end] == '.') ++end;  // of a short form
    const std::string name = usual_name(word);
    if (name == "degree" && term().find('\\') != std::string::npos) {  // \cos 60 degrees
      term() += kDegree;
      at_ = end;
      return;
    }
    add_word(name);
    at_ = end;
    take_power();
  }
  // Behind a unit: ^2, ^{3}; and `/` before the next one.
  void take_power() {
    const std::string_view rest = std::string_view(text_).substr(at_);
    const size_t begin = std::min(rest.find_first_not_of(' '), rest.size());
    for (const std::string_view power : {"^2", "^3", "^{2}", "^{3}"}) {
      if (!rest.substr(begin).starts_with(power)) continue;
      out_.words.back().push_back(power.find('2') == std::string_view::npos ? "^3" : "^2");
      at_ += begin + power.size();
      return;
    }
    const size_t next = rest.find_first_not_of(' ', 1);
    if (rest.starts_with('/') && next != std::string_view::npos && (rest[next] == kWord || is_letter(rest[next]))) {
      out_.words.back().push_back("per");
      ++at_;
    }
  }
  void finish() {
    for (std::string& one : out_.terms) {
      one = trimmed(one);
      if (one == "." || one == ",") one.clear();
    }
    if (is_money_) {
      if (out_.words.empty() || !out_.terms.back().empty()) out_.words.emplace_back(), out_.terms.emplace_back();
      out_.words.back().push_back("dollar");
    }
    for (const auto& [sign, name] : {std::pair{kDegree, "degree"}, {'%', "percent"}}) {
      const size_t last = out_.terms.back().empty() && out_.terms.size() > 1 ? out_.terms.size() - 2 : out_.terms.size() - 1;
      std::string& term = out_.terms[last];
      if (term.empty() || term.back() != sign || (sign == kDegree && is_angle_of_a_function(term))) continue;
      if (sign == kDegree) term.pop_back();
      if (last + 1 == out_.terms.size()) out_.words.emplace_back(), out_.terms.emplace_back();
      out_.words[last].emplace_back(name);
    }
    for (size_t i = 0; i + 1 < out_.terms.size(); ++i)  // 7:00 a.m. is 7 a.m.
      if (out_.terms[i + 1] == "00" && i + 1 < out_.words.size() && out_.words[i] == Words{"to"} && is_one_of(out_.words[i + 1].front(),
          {"am", "pm"})) {
        out_.terms.erase(out_.terms.begin() + static_cast<ptrdiff_t>(i) + 1);
        out_.words.erase(out_.words.begin() + static_cast<ptrdiff_t>(i));
      }
    const auto is_money = [](const Words& words) {
      return words.size() == 1 && is_one_of(words[0], {"dollar", "euro", "sterling", "rupee", "yen"});
    };
    if (out_.words.size() == 1 && out_.terms[0].empty() && is_money(out_.words[0])) std::swap(out_.terms[0], out_.terms[1]);  // USD 5
    fold(out_);
    add_up(out_);
  }

  const std::string& text_;
  size_t at_ = 0;
  int depth_ = 0;
  bool is_money_ = false;
  Worded out_;
};

// Of `words`, those that carry meaning, in their order.
Words meant(const Words& words) {
  Words out;
  std::copy_if(words.begin(), words.end(), std::back_inserter(out), carries_meaning);
  return out;
}

int power_of(const Words& words) {
  return std::ranges::find(words, "^2") != words.end() ? 2 : std::ranges::find(words, "^3") != words.end() ? 3 : 1;
}

std::string to_the(const char* factor, int power) { return "(" + std::string(factor) + ")^" + std::to_string(power); }

// Behind the last term: one may leave its words out, or some of them.
bool same_units(const Words& a, const Words& b, WordMatch& match) {
  if (meant(a) != meant(b)) return false;
  if (a.empty() || b.empty()) return true;
  if (power_of(a) != power_of(b)) return false;
  const Unit *unit_a = unit_of(a), *unit_b = unit_of(b);
  if (unit_a && unit_b) {
    if (unit_a->kind != unit_b->kind) return false;
    if (unit_a != unit_b) match.factor_a = to_the(unit_a->factor, power_of(a)), match.factor_b = to_the(unit_b->factor, power_of(b));
  }
  const auto rest = [](const Words& words, bool without_units) {
    Words out;
    for (const std::string& word : words)
      if (!word.starts_with('^') && !(without_units && units().contains(word))) out.push_back(word);
    std::ranges::sort(out);
    return out;
  };
  const Words rest_a = rest(a, unit_a && unit_b), rest_b = rest(b, unit_a && unit_b);
  return std::ranges::includes(rest_a, rest_b) || std::ranges::includes(rest_b, rest_a);
}

}  // namespace

bool Worded::has_terms() const {
  return std::any_of(terms.begin(), terms.end(), [](const std::string& term) { return !term.empty(); });
}

Worded read_words(const std::string& text) { return Reader(text).read(); }

bool has_condition(const Worded& text) {
  return std::any_of(text.words.begin(), text.words.end(), [](const Words& words) { return std::any_of(words.begin(), words.end(),
      is_condition); });
}

bool is_quantity(const Worded& text) {
  if (text.words.size() != 1 || text.terms.front().empty() || !text.terms.back().empty() || !meant(text.words[0]).empty()) return false;
  return text.words[0].size() <= 3;
}

bool has_known_units(const Worded& text) {
  return std::ranges::all_of(text.words, [](const Words& words) {
    return std::ranges::all_of(words, [](const std::string& word) {
      return units().contains(word) || word.starts_with('^') || is_one_of(word, {"per", "percent", "degree"});
    });
  });
}

WordMatch match_words(const Worded& a, const Worded& b) {
  WordMatch match;
  const auto leading = [](const Worded& text) { return text.has_words() && text.terms.front().empty() ? text.words.front() : Words{}; };
  const auto trailing = [](const Worded& text) {
    const bool stands_behind = text.has_words() && text.terms.back().empty() && (text.words.size() > 1 || !text.terms.front().empty());
    return stands_behind ? text.words.back() : Words{};
  };
  const auto inner = [](const Worded& text) {
    std::vector<Words> out;
    for (size_t i = 0; i < text.words.size(); ++i)
      if (!text.terms[i].empty() && !text.terms[i + 1].empty()) out.push_back(text.words[i]);
    return out;
  };
  if (leading(a) != leading(b) || inner(a) != inner(b)) return match;
  match.same = same_units(trailing(a), trailing(b), match);
  return match;
}

}  // namespace tandem::reward
