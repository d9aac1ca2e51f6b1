// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/math/spelled.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "tandem/base/strings.h"
#include "tandem/reward/math/notation.h"

namespace tandem::reward {

using text::Regex;

namespace {

constexpr size_t kLongestPhrase = 200;

constexpr Row<int64_t> kSmallNumbers[] = {
    {"zero", 0},     {"one", 1},        {"two", 2},        {"three", 3},     {"four", 4},       {"five", 5},     {"six", 6},
    {"seven", 7},    {"eight", 8},      {"nine", 9},       {"ten", 10},      {"eleven", 11},    {"twelve", 12},  {"thirteen", 13},
    {"fourteen", 14}, {"fifteen", 15},  {"sixteen", 16},   {"seventeen", 17}, {"eighteen", 18}, {"nineteen", 19}, {"twenty", 20},
    {"thirty", 30},  {"forty", 40},     {"fifty", 50},     {"sixty", 60},    {"seventy", 70},   {"eighty", 80},  {"ninety", 90}};
constexpr Row<int64_t> kNumberScales[] = {
    {"hundred", 100}, {"thousand", 1000}, {"million", 1000000}, {"billion", 1000000000},
    {"trillion", 1000000000000}};
constexpr Row<int64_t> kNumberParts[] = {
    {"half", 2},   {"halves", 2}, {"third", 3},  {"quarter", 4}, {"fourth", 4},     {"fifth", 5},
    {"sixth", 6},  {"seventh", 7}, {"eighth", 8}, {"ninth", 9},   {"tenth", 10},     {"twelfth", 12},
    {"sixteenth", 16}, {"twentieth", 20}, {"hundredth", 100}, {"thousandth", 1000}};
constexpr Row<int64_t> kNumberRanks[] = {
    {"first", 1}, {"second", 2}, {"third", 3}, {"fourth", 4}, {"fifth", 5}, {"sixth", 6}, {"seventh", 7},
    {"eighth", 8}, {"ninth", 9}, {"tenth", 10}, {"eleventh", 11}, {"twelfth", 12}};

const int64_t* part_of(std::string word) {
  if (word.size() > 1 && word.back() == 's' && word != "halves") word.pop_back();
  return value_of(kNumberParts, word);
}

class Speller {
 public:
  explicit Speller(const std::string& text) : text_(text) {}

  std::string read() {
    while (at_ < text_.size()) {
      size_t end = at_;
      const std::string word = begins_word() ? word_at(at_, end) : "";
      if (!word.empty() && value_of(kSmallNumbers, word)) number();
      else if (!word.empty()) out_.append(text_, at_, end - at_), at_ = end;
      else out_ += text_[at_++];
    }
    return std::move(out_);
  }

 private:
  bool begins_word() const {
    const char before = at_ > 0 ? text_[at_ - 1] : ' ';
    return !is_letter(before) && !is_digit(before) && before != '\\' && before != kWord;
  }
  // The word at a place, its mark passed over, in lower case; "" where none stands.
  std::string word_at(size_t at, size_t& end) const {
    if (at < text_.size() && text_[at] == kWord) ++at;
    size_t last = at;
    while (last < text_.size() && is_letter(text_[last])) ++last;
    end = last;
    return last < text_.size() && text_[last] == '_' ? "" : lower_ascii(text_.substr(at, last - at));
  }
  // The word behind blanks, or right behind a hyphen: with blanks beside it, that is a minus.
  std::string next_word(size_t from, size_t& end) const {
    size_t at = from;
    while (at < text_.size() && text_[at] == ' ') ++at;
    if (at == from && at < text_.size() && text_[at] == '-') ++at;
    return at > from ? word_at(at, end) : "";
  }

  // twenty-one (with its hyphen: "forty two" is also a list), three hundred and five, two million; then a part, as in two thirds.
  void number() {
    int64_t sum = 0, group = 0, last = 0, least = INT64_MAX;
    size_t end = at_;
    std::string word = word_at(at_, end);
    for (size_t next = end;;) {
      if (const auto small = value_of(kSmallNumbers, word)) group += last = *small;
      else if (const int64_t scale = *value_of(kNumberScales, word); scale == 100) group *= 100, last = 100;
      else sum += group * scale, group = 0, last = least = scale;
      end = next;
      const bool has_hyphen = end < text_.size() && text_[end] == '-';
      word = next_word(end, next);
      if (word == "and" && last >= 100) word = next_word(next, next);
      const auto small = value_of(kSmallNumbers, word), scale = value_of(kNumberScales, word);
      const bool adds = small && (has_hyphen ? last >= 20 && last < 100 && *small > 0 && *small < 10 : last >= 100);
      const bool scales = scale && group > 0 && (*scale == 100 ? group < 100 : group < 1000 && *scale < least);
      if (!adds && !scales) break;
    }
    const std::string whole = std::to_string(sum + group);
    size_t next = end;
    if (const auto part = part_of(next_word(end, next)); part && sum + group > 0)
      out_ += "\\frac{" + whole + "}{" + std::to_string(*part) + "}", end = next;
    else
      out_ += whole;
    at_ = end;
    if (const std::string again = " (" + whole + ")"; text_.compare(at_, again.size(), again) == 0) at_ += again.size();  // five (5)
  }

  const std::string& text_;
  size_t at_ = 0;
  std::string out_;
};

// The text without marks, in lower case, with single blanks.
std::string plain_phrase(const std::string& text) {
  std::string out;
  for (char c : lower_ascii(text))
    if (c == ' ' && (out.empty() || out.back() == ' ')) continue;
    else if (c != kWord) out += c;
  return trimmed(out);
}

std::string with_group(const Regex& pattern, const std::string& text, const std::string& before, const std::string& behind) {
  return pattern.replaced_in(text, [&](const Regex::Scan& match) { return before + match.text(1) + behind; });
}

bool holds_any(const std::string& text, std::initializer_list<std::string_view> parts) {
  return std::ranges::any_of(parts, [&](std::string_view part) { return text.find(part) != std::string::npos; });
}

}  // namespace

std::string with_spelled_numbers(const std::string& text) {
  if (std::none_of(text.begin(), text.end(), is_letter)) return text;
  static const TrustedRegex kHalf(R"((?i)(?<![\d.}])(\d++)\s*+\x05?and\s++\x05?a\s++\x05?half\b)"),
      kNegative(R"((?i)^\s*+\x05?(?:negative|minus)\s++(?=[\d\\]))");
  std::string out = Speller(text).read();
  if (holds_any(lower_ascii(out), {"half", "negative", "minus"})) {
    out = substituted(kNegative, with_group(kHalf, out, "", "\\frac{1}{2}"), "-");
    if (plain_phrase(out) == "half" || plain_phrase(out) == "a half") out = "\\frac{1}{2}";
  }
  return out;
}

std::string with_usual_phrases(std::string text) {
  if (text.size() > kLongestPhrase || std::none_of(text.begin(), text.end(), is_letter)) return text;
  const std::string whole = plain_phrase(text);
  static const TrustedRegex kNoSolution(R"(^(?:there (?:is|are) )?no (?:real )?(?:solutions?|roots?)(?: exists?)?$)"),
      kInfinity(R"(^(?:infinity|infinite|infinitely many(?: solutions)?)$)"),
      kArticle(R"(^\s*+\x05?(?i:an?|the)\s++(?=\x05?[A-Za-z]{3}))"),
      kPlain(R"(^[a-z]++(?: (?!sin|cos|tan|sec|csc|cot|log|exp|sqrt|root)[a-z]{3,}+)++$)"),
      kRank(R"((\d)\s*+(?:\^\s*+)?(?:\{\s*+\x05?(?:st|nd|rd|th)\s*+\}|\x05?(?:st|nd|rd|th)\b))"),
      kRemainder(R"((?i)(?<=\d)\s*+,?\s*+(?:\x05?with\s++)?(?:\x05?a\s++)?\x05?remainder\s*+(?:(?:\x05?of|\x05?is)\b|=|:)?\s*+)"),
      kQuotient(R"((?i)^\s*+\x05?quotient\s*+(?:(?:\x05?of|\x05?is)\b|=|:)?\s*+(?=\d[^a-z\x05]*\x05?remainder))"),
      kBase(R"((?i)(?<=[\dA-F])\s*+\(?\s*+(?:\x05?in\s++)?\x05?base[\s-]*+(\d++)\s*+\)?\s*+$)"),
      kBaseIndex(R"(_\s*+\{\s*+(\d++)\s*+\})"),
      kHours(R"((?<=\d)\s*+\x05?hr?s?\s*+(\d++)\s*+\x05?m(?:ins?)?\b(?!/))");
  if (kNoSolution.found_in(whole)) return "\\emptyset";
  if (kInfinity.found_in(whole)) return "\\infty";
  if (kPlain.found_in(whole)) text = substituted(kArticle, text, "");
  const size_t space = whole.find(' ');
  if (const auto rank = value_of(kNumberRanks, whole.substr(0, space))) {
    const size_t at = text.find_first_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
    if (trimmed(std::string_view(text).substr(0, at)).size() <= 1)
      text = std::to_string(*rank) + " " + kWord + "th" + text.substr(at + std::min(space, whole.size()));
  }
  if (holds_any(text, {"st", "nd", "rd", "th"})) text = with_group(kRank, text, "", std::string(" ") + kWord + "th ");
  if (holds_any(lower_ascii(text), {"remainder"}))
    text = substituted(kRemainder, substituted(kQuotient, text, ""), std::string(" ") + kWord + "remainder ");
  if (holds_any(lower_ascii(text), {"base"})) text = with_group(kBase, text, "_{", "}");
  if (text.find('_') != std::string::npos) text = with_group(kBaseIndex, text, "_{", "}");
  if (text.find('h') != std::string::npos)
    text = with_group(kHours, text, std::string(" ") + kWord + "hour ", std::string(" ") + kWord + "minute");
  return text;
}

}  // namespace tandem::reward
