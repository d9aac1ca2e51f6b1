// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/math/words.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "tandem/base/strings.h"
#include "tandem/reward/math/math_expr.h"
#include "tandem/reward/math/notation.h"

namespace tandem::reward {
namespace {

using Words = std::vector<std::string>;

struct Unit {
  char kind;           // units of one kind can be changed into each other
  const char* factor;  // to the smallest of them here
};
constexpr Row<Unit> kUnits[] = {
    {"mm", {'l', "1"}},        {"cm", {'l', "10"}},        {"m", {'l', "1000"}},     {"km", {'l', "1000000"}}, {"inch", {'l', "25.4"}},
    {"foot", {'l', "304.8"}},  {"yard", {'l', "914.4"}},   {"mile", {'l', "1609344"}}, {"second", {'t', "1"}}, {"minute", {'t', "60"}},
    {"hour", {'t', "3600"}},   {"day", {'t', "86400"}},    {"week", {'t', "604800"}}, {"month", {'M', "1"}},   {"year", {'M', "12"}},
    {"mg", {'w', "1"}},        {"gram", {'w', "1000"}},    {"kg", {'w', "1000000"}}, {"ounce", {'o', "1"}},    {"pound", {'o', "16"}},
    {"ton", {'T', "1"}},       {"ml", {'v', "1"}},         {"liter", {'v', "1000"}}, {"cup", {'c', "1"}},      {"pint", {'c', "2"}},
    {"quart", {'c', "4"}},     {"gallon", {'c', "16"}},    {"cent", {'d', "1"}},     {"dollar", {'d', "100"}}, {"euro", {'e', "1"}},
    {"sterling", {'s', "1"}},  {"rupee", {'r', "1"}},      {"yen", {'y', "1"}},      {"celsius", {'C', "1"}},  {"fahrenheit", {'F', "1"}},
    {"radian", {'R', "1"}},    {"newton", {'N', "1"}},     {"joule", {'J', "1"}},   {"watt", {'W', "1"}},     {"kelvin", {'K', "1"}},
    {"kwh", {'k', "1"}},       {"hz", {'H', "1"}},        {"khz", {'H', "1000"}},  {"kj", {'J', "1000"}},     {"kn", {'N', "1000"}},
    {"kw", {'W', "1000"}},     {"pa", {'P', "1"}},         {"kpa", {'P', "1000"}},
    {"volt", {'V', "1"}},       {"ohm", {'O', "1"}},     {"mole", {'m', "1"}}};

// Short forms, other spellings and plurals that no rule gives; the value is the usual name.
constexpr Row<std::string_view> kUsualNames[] = {
    {"centimeter", "cm"},  {"centimetre", "cm"}, {"millimeter", "mm"}, {"millimetre", "mm"}, {"meter", "m"},       {"metre", "m"},
    {"kilometer", "km"},   {"kilometre", "km"},  {"in", "inch"},       {"inche", "inch"},    {"ft", "foot"},       {"feet", "foot"},
    {"yd", "yard"},        {"mi", "mile"},       {"sec", "second"},    {"s", "second"},      {"min", "minute"},    {"hr", "hour"},
    {"h", "hour"},         {"g", "gram"},        {"kilogram", "kg"},   {"milligram", "mg"},  {"lb", "pound"},      {"oz", "ounce"},
    {"litre", "liter"},    {"l", "liter"},       {"milliliter", "ml"}, {"usd", "dollar"},    {"buck", "dollar"},   {"eur", "euro"},
    {"r", "remainder"},    {"rem", "remainder"}, {"a.m", "am"},        {"p.m", "pm"},        {"c", "celsius"},     {"f", "fahrenheit"},
    {"people", "person"},  {"children", "child"}, {"men", "man"},      {"women", "woman"},   {"sq", "square"},
    {"cu", "cubic"},       {"whenever", "when"}, {"mol", "mole"},       {"n", "newton"},     {"j", "joule"},       {"w", "watt"},
    {"rs", "rupee"},       {"inr", "rupee"},     {"rad", "radian"},    {"pct", "percent"},   {"percentage", "percent"},
    {"modulo", "mod"},     {"wk", "week"},       {"yr", "year"},       {"mo", "month"},      {"approximately", "about"}};

// Powers of ten, and what counts by the dozen.
constexpr Row<std::string_view> kScales[] = {
    {"hundred", "10^2"}, {"thousand", "10^3"}, {"million", "10^6"}, {"billion", "10^9"}, {"trillion", "10^12"},
    {"quadrillion", "10^15"}, {"lakh", "10^5"}, {"crore", "10^7"}, {"ten", "10"}, {"dozen", "12"}};

bool is_condition(std::string_view word) { return is_one_of(word, {"if", "when", "where", "for", "unless", "otherwise", "except",
    "provided", "given"}); }

// Words that change what a number says: they never go.
bool carries_meaning(std::string_view word) {
  return is_condition(word) || value_of(kScales, word) || word.ends_with("teenth") || word.ends_with("tieth") ||
         word.ends_with("illionth") ||
         is_one_of(word, {"to", "through", "till", "until", "from", "between", "remainder", "mod", "not", "no", "less", "fewer", "least",
                          "most", "than", "is", "are", "or", "am", "pm", "noon", "midnight", "plus", "minus", "half", "halve", "third",
                          "quarter", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth",
                          "hundredth", "thousandth", "base", "bc", "bce", "below", "even", "odd", "negative", "january", "february",
                          "march", "april", "may", "june", "july", "august", "september", "october", "november", "december", "factorial",
                          "recurring", "repeating", "repeated", "periodic", "pair", "couple", "doubled", "tripled", "halved", "twice",
                          "thrice", "multiplied", "divided", "binary", "octal", "hexadecimal", "imaginary", "wrong", "false", "incorrect",
                          "incorrectly", "invalid", "mistaken", "untrue", "never", "none", "neither", "nor", "cannot", "without",
                          "almost", "maybe", "perhaps", "possibly", "impossible", "undefined", "instead", "but", "subtract", "reciprocal",
                          "inverse", "inverted", "negated", "permille"});
}

bool is_filler(std::string_view word) {
  return is_one_of(word, {"the", "a", "an", "about", "exactly", "and", "total", "in", "answer", "with"});
}

// Words that stand outside \text: longer ones, and short ones that spell no product of variables.
bool is_plain_word(std::string_view word, bool behind_a_number, bool blank_before) {
  const std::string known = lower_ascii(word);
  if (is_one_of(known, {"sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln",
      "log", "exp", "abs", "pi", "inf", "infinity", "frac", "pm"}))
    return known == "pm" && behind_a_number;
  if (word.size() >= 4) return true;
  if (is_one_of(known, {"to", "if", "for", "or", "and", "rem", "when", "no", "not", "is", "are", "the", "of", "out", "mod", "all", "any",
      "yes", "odd", "per", "but", "nor"}))
    return true;
  if (is_one_of(known, {"am", "mph", "day", "sq", "usd", "ft", "km", "cm", "mm", "kg", "lbs", "lb", "oz", "cup", "ton", "way", "men",
      "old", "an", "th", "sec", "min", "hrs", "hr", "pct"}) && behind_a_number)
    return true;
  return is_one_of(word, {"in", "mi", "m", "mL", "ml", "kWh", "kW", "Hz", "kHz", "kJ", "kPa"}) &&
         behind_a_number && blank_before;  // 3m is three times m
}

std::string usual_name(std::string word) {
  word = lower_ascii(word);
  while (!word.empty() && word.back() == '.') word.pop_back();
  if (const auto* name = value_of(kUsualNames, word)) return std::string(*name);
  const bool is_plural = word.size() > 2 && word.ends_with('s') && !word.ends_with("ss") && !word.ends_with("us") && !word.ends_with("is");
  if (is_plural && word != "times") word.pop_back();
  const auto* name = value_of(kUsualNames, word);
  return name ? std::string(*name) : word;
}

// The unit of one word; nullptr where that is none.
const Unit* unit_of(const std::string& word) { return value_of(kUnits, word); }

bool is_power(std::string_view word) { return word.starts_with('^') || word == "square" || word == "cubic"; }

// `4 million` and `50 percent` are terms; `the` and its like say nothing.
void fold(Worded& text) {
  for (size_t i = 0; i < text.words.size(); ++i) {
    Words& words = text.words[i];
    std::string& term = text.terms[i];
    while (!term.empty() && !words.empty() && value_of(kScales, words.front()) && parse_expression(term)) {
      term = "(" + term + ")*" + std::string(*value_of(kScales, words.front()));
      words.erase(words.begin());
    }
    if (words.size() > 1 && words[0] == "per" && words[1] == "cent") words.erase(words.begin()), words[0] = "percent";
    if (!term.empty() && !words.empty() && words.front() == "percent" && !term.ends_with('%')) term += "%";
    for (const auto& [word, power] : {std::pair{"squared", "^2"}, {"cubed", "^3"}, {"factorial", "!"}}) {  // 5 squared, 5 meters squared
      if (!term.empty() && !words.empty() && words.front() == word) {
        term = "(" + term + ")" + power;
        words.erase(words.begin());
      }
      std::ranges::replace(words, std::string(word), std::string(power));
    }
    for (size_t k = 0; k + 1 < words.size(); ++k) {  // 5 miles an hour
      const Unit* next = is_one_of(words[k], {"a", "an", "each", "every"}) ? unit_of(words[k + 1]) : nullptr;
      if (next && (next->kind == 't' || next->kind == 'M')) words[k] = "per";
    }
    std::erase_if(words, is_filler);
  }
  while (!text.words.empty() && text.words.back().empty() && text.terms.back().empty()) text.words.pop_back(), text.terms.pop_back();
  while (!text.words.empty() && text.words.front().empty() && text.terms.front().empty())
    text.words.erase(text.words.begin()), text.terms.erase(text.terms.begin());
}

// 3 hours 40 minutes is 220 minutes.
void add_up(Worded& text) {
  if (text.words.size() < 2 || text.terms.size() != text.words.size() + 1 || !text.terms.back().empty()) return;
  const Unit* last = text.words.back().size() == 1 ? unit_of(text.words.back()[0]) : nullptr;
  if (!last) return;
  std::string sum;
  for (size_t i = 0; i < text.words.size(); ++i) {
    const Unit* unit = text.words[i].size() == 1 ? unit_of(text.words[i][0]) : nullptr;
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
    return end == at_ + 1 && is_one_of(lower_ascii(text_.substr(at_, 3)), {"a.m", "p.m"}) && !is_letter_at(at_ + 3);
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
    std::string before = trimmed(term());
    if (!out_.words.empty() && is_one_of(before, {"\\cdot", "\\times", "*", "-"})) before = term() = "";  // newton-meters
    const bool is_per = before.size() > 1 && before.ends_with('/');                                    // 5/hour
    if (is_per) term().erase(term().rfind('/'));
    if (!before.empty() || out_.words.empty()) {
      out_.words.emplace_back();
      out_.terms.emplace_back();
    }
    Words& words = out_.words.back();
    if (is_per) words.emplace_back("per");
    if (is_one_of(word, {"mph", "kph", "kmh", "kmph"})) words.insert(words.end(), {word == "mph" ? "mile" : "km", "per", "hour"});
    else words.push_back(word);
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
  size_t blanks_end(size_t at) const { return std::min(text_.find_first_not_of(' ', at), text_.size()); }
  // Behind a unit: ^2, ^{-3}; and `/` before the next one.
  void take_power() {
    size_t at = blanks_end(at_);
    const bool has_power = at < text_.size() && text_[at] == '^';
    const bool is_braced = has_power && text_.compare(at + 1, 1, "{") == 0;
    const size_t begin = at + has_power + is_braced, digit = begin + (has_power && text_.compare(begin, 1, "-") == 0);
    const size_t end = digit + 1 + is_braced;
    if (has_power && end <= text_.size() && is_digit(text_[digit]) && (!is_braced || text_[digit + 1] == '}')) {
      out_.words.back().push_back("^" + text_.substr(begin, digit + 1 - begin));
      at_ = end;
      at = blanks_end(at_);
    }
    const size_t next = blanks_end(at + 1);
    if (at < text_.size() && text_[at] == '/' && next < text_.size() && (text_[next] == kWord || is_letter(text_[next]))) {
      out_.words.back().push_back("per");
      at_ = at + 1;
    }
  }
  void finish() {
    for (std::string& one : out_.terms) {
      one = trimmed(one);
      if (one == "." || one == ",") one.clear();
    }
    if (is_money_) {
      if (out_.words.empty() || !out_.terms.back().empty()) out_.words.emplace_back(), out_.terms.emplace_back();
      Words& words = out_.words.back();
      const auto divides = [](const std::string& word) { return is_one_of(word, {"per", "a", "an", "each", "every"}); };
      words.insert(std::ranges::find_if(words, divides), "dollar");
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

// Units as a whole, such as km/h^2: the power of each kind, and what a value is multiplied by; and the words beside them.
struct Measure {
  std::map<std::string, int> kinds;  // of units, and what else stands behind `per`
  std::string factor = "1";
  int power = 0;                     // of no unit: 5 square tiles
  int units = 0;                     // of units without a name: 5 square units have 2
  Words rest;                        // in the order of letters
};

Measure measure_of(const Words& words) {
  Measure out;
  int sign = 1, next_power = 1;  // of square meters
  for (size_t i = 0; i < words.size(); ++i) {
    const auto exponent = [](const std::string& word) { return word == "square" ? 2 : word == "cubic" ? 3 : std::stoi(word.substr(1)); };
    const Unit* unit = unit_of(words[i]);
    if (words[i] == "per") {
      sign = -1;
    } else if (is_power(words[i])) {
      const bool has_unit = words[i][0] != '^' && i + 1 < words.size() && unit_of(words[i + 1]);
      (has_unit ? next_power : out.power) = exponent(words[i]);
    } else if (words[i] == "unit") {
      const bool has_power = i + 1 < words.size() && is_power(words[i + 1]);
      out.units += sign * (has_power ? exponent(words[++i]) : out.power != 0 ? std::exchange(out.power, 0) : 1);
    } else if (unit || (i > 0 && words[i - 1] == "per")) {
      const std::string& name = words[i];
      const bool has_power = i + 1 < words.size() && is_power(words[i + 1]) && (words[i + 1][0] == '^' || i + 2 == words.size());
      const int power = sign * next_power * (has_power ? exponent(words[++i]) : 1);
      out.kinds[unit ? std::string(1, unit->kind) : name] += power;
      if (unit) out.factor += "*(" + std::string(unit->factor) + ")^(" + std::to_string(power) + ")";
      next_power = 1;
    } else {
      out.rest.push_back(words[i]);
    }
  }
  std::ranges::sort(out.rest);
  return out;
}

// Behind the last term: one may leave its words out, or some of those beside its unit.
bool same_units(const Words& a, const Words& b, WordMatch& match) {
  if (meant(a) != meant(b)) return false;
  if (a.empty() || b.empty()) return true;
  Measure x = measure_of(a), y = measure_of(b);
  for (const auto& [one, other] : {std::pair{&x, &y}, {&y, &x}}) {  // 5 square units are 5 cm^2
    if (one->units == 0 || !one->kinds.empty()) continue;
    int degree = other->units + other->power;
    for (const auto& [kind, power] : other->kinds) degree += power;
    if (degree != 0 && degree != one->units) return false;
    if (degree != 0) one->kinds = other->kinds, one->factor = other->factor, one->power = other->power;
  }
  const auto is_whole = [](const Words& words, const Measure& of) {
    return of.kinds.size() > 1 || std::ranges::find(words, "per") != words.end();
  };
  const bool may_lack = !is_whole(a, x) && !is_whole(b, y);  // 5 tall is 5 feet tall
  const bool lacks_x = may_lack && x.kinds.empty(), lacks_y = may_lack && y.kinds.empty();
  if (x.power != y.power || (x.kinds != y.kinds && !lacks_x && !lacks_y)) return false;
  if (x.kinds == y.kinds && x.factor != y.factor) match.factor_a = x.factor, match.factor_b = y.factor;
  return ((lacks_y || !lacks_x) && std::ranges::includes(x.rest, y.rest)) ||
         ((lacks_x || !lacks_y) && std::ranges::includes(y.rest, x.rest));
}

}  // namespace

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
      return unit_of(word) || is_power(word) || is_one_of(word, {"per", "percent", "degree"});
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
