// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/graders.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <numbers>
#include <set>
#include <sstream>

#include "tandem/base/strings.h"
#include "tandem/reward/math/hendrycks.h"
#include "tandem/reward/math/math_expr.h"
#include "tandem/text/regex.h"
#include "tandem/text/unicode.h"

namespace tandem::reward {

using text::Regex, text::TrustedRegex;

namespace {

std::vector<std::string> find_all(const Regex& pattern, std::string_view text) {
  std::vector<std::string> found;
  for (Regex::Scan scan(pattern, text); scan.next();) found.push_back(scan.text(scan.num_groups() > 1 ? 1 : 0));
  return found;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

}  // namespace

std::string_view last_characters(std::string_view text, size_t count) {
  size_t at = text.size();
  while (at > 0 && count > 0) {
    --at;
    if ((static_cast<uint8_t>(text[at]) & 0xC0) != 0x80) --count;
  }
  return text.substr(at);
}

std::optional<std::string> gsm8k_answer(std::string_view response, bool flexible) {
  static const TrustedRegex kStrict(R"(#### (-?[0-9.,]+))"), kFlexible(R"(-?[0-9.,]+)");
  const std::vector<std::string> found = find_all(flexible ? kFlexible : kStrict, last_characters(response, 300));
  if (found.empty()) return std::nullopt;
  if (!flexible) return replaced(replaced(found.back(), ",", ""), "$", "");
  const auto valid = std::find_if(found.rbegin(), found.rend(), [](const std::string& s) { return s != "."; });
  return valid == found.rend() ? found.front() : *valid;
}

std::optional<std::string> last_number(std::string_view written) {
  const std::string text = replaced(std::string(written), "\xE2\x88\x92", "-");
  // Digits of 0x10 and of 1_000 are no numerals of their own.
  static const TrustedRegex kNumber(R"((?<![\d.])(?<!\b0[xXoObB])(?<!\d_)-?(?!0[xXoObB][\da-fA-F])(?!\d++_\d))"
                                    R"((?:(?:\d{1,3}(?:,\d{3})++(?!,?\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,4})?)");
  std::string found;
  for (Regex::Scan scan(kNumber, text); scan.next();) {
    found = scan.text();
    // In `10-3` and `x-3` the minus belongs to a subtraction.
    const size_t begin = scan.group().begin;
    if (found[0] == '-' && begin > 0 && (std::isalnum(static_cast<unsigned char>(text[begin - 1])) || text[begin - 1] == ')'))
      found.erase(0, 1);
  }
  std::erase(found, ',');
  return found.empty() ? std::nullopt : std::optional(found);
}

bool same_number(std::string_view a, std::string_view b) {
  auto value = [](std::string_view text) {
    std::string s(text);
    std::erase(s, ',');
    if (const size_t exponent = s.find_first_of("eE"); exponent != std::string::npos)
      s = s.substr(0, exponent) + "*10^(" + s.substr(exponent + 1) + ")";
    return parse_expression(s);
  };
  const ExprPtr x = value(a), y = value(b);
  return x && y && same_value(*x, *y);
}

std::optional<double> decimal_value(std::string_view text) {
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_numeral = !text.empty() && (text[0] == '.' || (text[0] >= '0' && text[0] <= '9'));  // from_chars takes the word inf, too
  if (!is_numeral || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return is_negative ? -value : value;
}

namespace {

bool is_all_digits(const std::string& text) { return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos; }

// 18.0, +18 and 0018 as 18, of any length; what is no integer stays as it is.
std::string integer_text(const std::string& text) {
  static const TrustedRegex kInteger(R"(^([-+]?)0*+(\d++|(?<=0))(?:\.0*+)?$)");
  Regex::Scan scan(kInteger, text);
  if (scan.next()) {
    const std::string digits = scan.text(2).empty() ? "0" : scan.text(2);
    return (scan.text(1) == "-" && digits != "0" ? "-" : "") + digits;
  }
  const auto value = decimal_value(text);  // 1e3
  const bool is_exact = value && std::fabs(*value) < 9007199254740992.0 && *value == std::trunc(*value);
  return is_exact ? std::to_string(static_cast<int64_t>(*value)) : text;
}

}  // namespace

std::string dapo_normal(std::string s, bool drop_markers) {
  static const char* const kPairs[][2] = {{"an ", ""}, {"a ", ""}, {".$", "$"}, {"\\$", ""}, {"\\ ", ""}, {" ", ""}, {"mbox", "text"},
                                          {",\\text{and}", ","}, {"\\text{and}", ","}, {"\\text{m}", "\\text{}"}};
  static const char* const kGone[] = {
      "square",          "ways",         "integers",  "dollars",   "mph",         "inches",     "hours",      "km",
      "units",           "\\ldots",      "sue",       "points",    "feet",        "minutes",    "digits",     "cents",
      "degrees",         "cm",           "gm",        "pounds",    "meters",      "meals",      "edges",      "students",
      "childrentickets", "multiples",    "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}",
      "\\text{}",        "\\mathrm{th}", "^\\circ",   "^{\\circ}", "\\;",         ",\\!",       "{,}",        "\"",
      "\\dots"};
  static const TrustedRegex kDollars(R"((.*?)(\$)(.*?)(\$)(.*))"), kText(R"(\\text\{(.*?)\})"), kBold(R"(\\textbf\{(.*?)\})"),
      kOverline(R"(\\overline\{(.*?)\})"), kBoxed(R"(\\boxed\{(.*)\})"), kFrac(R"(frac([^{])(.))"), kSqrt(R"(sqrt([^{]))");
  s = s.substr(s.rfind('=') + 1);
  for (const auto& pair : kPairs) s = replaced(s, pair[0], pair[1]);
  for (const char* gone : kGone) s = replaced(s, gone, "");
  if (drop_markers)
    for (const char* marker : {"<|im_end|>", "<|endoftext|>"}) s = replaced(s, marker, "");
  using Match = Regex::Scan;
  s = kDollars.replaced_in(s, [](const Match& match) { return "$" + match.text(3) + "$"; });
  for (const Regex* wrapped : {&kText, &kBold, &kOverline, &kBoxed})
    s = wrapped->replaced_in(s, [](const Match& match) { return match.text(1); });
  s = kFrac.replaced_in(s, [](const Match& match) { return "frac{" + match.text(1) + "}{" + match.text(2) + "}"; });
  s = replaced(kSqrt.replaced_in(s, [](const Match& match) { return "sqrt{" + match.text(1) + "}"; }), "$", "");
  if (const std::string joined = replaced(s, ",", ""); is_all_digits(joined)) s = joined;
  return trimmed(s);
}

std::optional<std::string> dapo_last_boxed(std::string_view text) {
  const size_t at = text.rfind("\\boxed{");
  return at == std::string_view::npos ? std::nullopt : last_boxed(text.substr(at));
}

DapoResult dapo_minerva(std::string_view response, std::string_view gold, const DapoStyle& style, const std::string& pattern) {
  static const TrustedRegex kAnswer(R"((?i)Answer\s*+:\s*([^\n]+))");
  const std::vector<std::string> found = pattern.empty() ? find_all(kAnswer, response) : find_all(Regex(pattern, "dapo rule"), response);
  const std::string answer = dapo_normal(found.empty() ? "[INVALID]" : found.back(), style.drop_markers);
  const std::string right = dapo_normal(std::string(gold), style.drop_markers);
  if (!style.integer_gold) return {answer == right, answer};
  return {integer_text(answer) == integer_text(right), answer};
}

DapoResult dapo_grade(std::string_view response, std::string_view gold, const DapoStyle& style) {
  if (!style.strict_box) return dapo_minerva(last_characters(response, 300), gold, style, "");
  const auto from = static_cast<size_t>(std::max<int64_t>(style.box_from, 0));
  const bool whole = style.box_from >= 0 && from <= response.size();
  const auto boxed = dapo_last_boxed(whole ? response.substr(from) : last_characters(response, 100));
  const auto answer = boxed ? inside_box(*boxed) : std::nullopt;
  return {answer && *answer == gold, answer};
}

namespace {

// A letter as a word of its own, with what it may stand in: brackets, stars, quotes, dollars, \text{, \boxed{.
constexpr const char* kLetter = R"((?:[\s*_"'`(\[{$\x{2018}\x{201C}]|\\(?:text|textbf|mathrm|mathbf|boxed|bf)\b)*+)"
                                R"(([A-Za-z])(?!_*[\p{L}\p{N}]|['\x{2019}]\w))";

struct NamedLetter {
  char letter;
  size_t begin, end;
};

// A small letter counts where it is announced, a capital anywhere.
std::vector<NamedLetter> letters_by(const Regex& pattern, std::string_view text, std::string_view letters) {
  std::vector<NamedLetter> found;
  for (Regex::Scan scan(pattern, text); scan.next();) {
    const char letter = static_cast<char>(std::toupper(static_cast<unsigned char>(scan.text(1)[0])));
    if (letters.find(letter) != std::string_view::npos) found.push_back({letter, scan.group(1).begin, scan.group(1).end});
  }
  return found;
}

// At most 40 bytes on either side of a place, in whole characters.
std::string_view just_behind(std::string_view text, size_t at) {
  size_t end = std::min(at + 40, text.size());
  while (end > at && end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(at, end - at);
}
std::string_view just_before(std::string_view text, size_t at) {
  size_t begin = at - std::min<size_t>(at, 40);
  while (begin < at && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) ++begin;
  return text.substr(begin, at - begin);
}

// The article and the pronoun of "A man" and "I think", but for "A is right".
bool begins_phrase(std::string_view text, const NamedLetter& named) {
  static const TrustedRegex kSmallWord(R"(^\s+(?!(?:is|was|are|were|because|since|or|and|but|seems?|must|fails?|holds?|works?|would|can|)"
                                       R"(cannot|both)\b)[a-z])");
  return (named.letter == 'A' || named.letter == 'I') && kSmallWord.found_in(just_behind(text, named.end));
}

// No choice: a letter that begins a phrase, or is ruled out.
bool is_no_choice(std::string_view text, const NamedLetter& named) {
  // "D cannot be determined" may be the text of D: verbs without an object of their own count alone.
  static const TrustedRegex kRuledOut(R"(^[)\]*_}$"']*+\s++(?:(?:(?:is|was)\s++(?:wrong|incorrect|false|not|out|ruled|impossible)|)"
                                      R"((?:isn't|wasn't|(?:cannot|can't|could\s++not)\s++be)\s++(?:right|correct|true|the\s++answer)|)"
                                      R"((?:does\s++not|doesn't|cannot|can't)\s++(?:work|hold|fit|match|follow))\b|)"
                                      R"((?:fails|failed)\s*+(?:[.,;!]|$)))"),
      kNot(R"((?i)(?:\bnot|n't|\bnever|\bneither|\bnor)\s+(?:option\s+|choice\s+)?[(*_"'\[{$]*$)"),
      kEnd(R"(^(?:[)\].:,;*_}$"'!]|\s*$))");
  const std::string_view behind = just_behind(text, named.end), before = just_before(text, named.begin);
  const bool is_small = std::islower(static_cast<unsigned char>(text[named.begin]));
  return (is_small && !kEnd.found_in(behind)) || begins_phrase(text, named) || kRuledOut.found_in(behind) || kNot.found_in(before);
}

// Of "B or C" and "B, C" the second letter.
struct Joined {
  size_t begin;
  bool by_comma;        // alone
  bool begins_clause;   // "B, and C is wrong"
};
std::optional<Joined> joined_to(std::string_view text, const NamedLetter& named, std::string_view letters) {
  static const TrustedRegex kNext(R"(^[)\]*_}$"'.]*+\s*+(,?\s*(?:or|and)\b|/|&|,)\s*+(?:(?:option|choice)\s++|\$?\\boxed\s*+)?)"
                                  R"([(\[*_{$"']*+([A-Z])(?![\w']))"),
      kVerb(R"(^[)\]*_}$"']*+\s+(?:is|was|isn't|wasn't|has|does|doesn't|fails|cannot|can't|would|will|seems|looks|gives|contradicts)\b)");
  Regex::Scan scan(kNext, just_behind(text, named.end));
  if (!scan.next()) return std::nullopt;
  const NamedLetter next{scan.text(2)[0], named.end + scan.group(2).begin, named.end + scan.group(2).end};
  if (next.letter == named.letter || letters.find(next.letter) == std::string_view::npos || begins_phrase(text, next)) return std::nullopt;
  const std::string by = scan.text(1);
  return Joined{next.begin, by == ",", by != "/" && !by.ends_with("or") && kVerb.found_in(just_behind(text, next.end))};
}

// "B or C", "B, C": more than one choice.
bool is_one_of_several(std::string_view text, const NamedLetter& named, std::string_view letters) {
  const auto joined = joined_to(text, named, letters);
  return joined && !joined->begins_clause;
}

// Where the choices are listed in their order, as the question lists them: from A to the end of the last one's sentence. A list has three
// letters, or all there are.
struct Place {
  size_t begin = 0, end = 0;
  bool holds(const NamedLetter& named) const { return begin <= named.begin && named.begin < end; }
};
Place list_in(std::string_view text, const std::vector<NamedLetter>& marked, std::string_view letters) {
  Place place;
  size_t count = 0;
  for (const NamedLetter& one : marked) {
    if (count == letters.size() || one.letter != letters[count]) continue;
    if (count++ == 0) place.begin = one.begin;
    place.end = std::min(text.find_first_of(".!?\n", one.end + 1), text.size());
  }
  return count >= std::min<size_t>(3, letters.size()) ? place : Place();
}

}  // namespace

std::optional<char> choice_letter(std::string_view response, std::string_view letters) {
  static const std::string kLetterText = kLetter;
  static const TrustedRegex kAnnounced(R"((?i)(?:(?:answer|option|choice|response)\s*+)"
                                       R"((?:(?:is|was|:|=|(?:should|must|would)\s+be)\s*+)++)"
                                       R"(|\banswer\b)"
                                       R"(|\b(?:wait|actually|no)\s*+,\s*+(?=[(*_]*[A-Z][)*_]*\s*[.!]|[(*_]*[A-Z][)*_]*\s*$))"
                                       R"(|\bno\s+wait\s*+,\s*+(?=[(*_]*[A-Z][)*_]*\s*(?:[.!]|$)))"
                                       R"(|\bit\s+(?:is|must\s+be|should\s+be)\b|\bit's\b|\b(?:choose|pick|select|choosing)\b))" +
                                           std::string(R"((?:\s*+(?:option|choice|letter|answer|indeed|clearly|:))*+)") + kLetterText),
      kConfirmed(R"((?<![\w'])([A-Z])[)\]*_}$"']*+\s*+(?:is|must\s++be|has\s++to\s++be)\s++(?:the\s++)?)"
                 R"((?:correct|right|best|answer)\b)"),
      kOption(R"((?i)\b(?:option|choice)\b)" + kLetterText),
      kBoxed(R"(\\boxed\s*\{)" + kLetterText),
      kFirst(R"(^[\s*_"'(\[]*+([A-Z])(?=[)\].:,*_]|\s*$))"),
      kAlone(R"((?<![\w'])([A-Z])(?![\w'\x{2019}]))"), kMarked(R"((?<!\w)([A-Z])\))"),
      kListed(R"((?<![\w'])([A-Z])(?=[*_]*[).:\]]))");
  if (const size_t thought = response.rfind("</think>"); thought != std::string_view::npos) response.remove_prefix(thought + 8);
  static const TrustedRegex kOnly(R"(^[\s*_"'`(\[]*+([A-Za-z])[\s*_"'`)\].:!]*+$)");
  if (const auto only = letters_by(kOnly, response, letters); !only.empty()) return only.front().letter;  // `b)`
  const auto named_by = [&](const Regex& pattern) {
    std::vector<NamedLetter> found = letters_by(pattern, response, letters);
    std::erase_if(found, [&](const NamedLetter& named) { return is_no_choice(response, named); });
    return found;
  };
  const auto settled = [&](const NamedLetter& named) {
    return is_one_of_several(response, named, letters) ? std::nullopt : std::optional(named.letter);
  };
  const auto is_second = [&](const std::vector<NamedLetter>& named, const NamedLetter& last) {  // B or D is right
    return std::ranges::any_of(named, [&](const NamedLetter& other) {
      const auto joined = joined_to(response, other, letters);
      return joined && !joined->by_comma && joined->begin == last.begin;
    });
  };
  if (const auto boxed = named_by(kBoxed); !boxed.empty())
    return is_second(boxed, boxed.back()) ? std::nullopt : settled(boxed.back());
  const auto announced = named_by(kAnnounced), confirmed = named_by(kConfirmed);
  auto alone = named_by(kAlone);
  if (!confirmed.empty() && (announced.empty() || announced.back().begin < confirmed.back().begin))
    return is_second(alone, confirmed.back()) ? std::nullopt : std::optional(confirmed.back().letter);
  if (!announced.empty()) return settled(announced.back());
  auto options = named_by(kOption);
  for (const auto& marked : {letters_by(kListed, response, letters), options}) {
    const Place list = list_in(response, marked, letters);
    for (auto* named : {&options, &alone}) std::erase_if(*named, [&list](const NamedLetter& one) { return list.holds(one); });
  }
  const auto is_alone = [&alone](const NamedLetter& one) {
    return std::ranges::any_of(alone, [&one](const NamedLetter& other) { return other.begin == one.begin; });
  };
  if (const auto first = named_by(kFirst); !first.empty() && is_alone(first.front()) && letters_by(kMarked, response,
      letters).size() < 2) return settled(first.front());
  if (!options.empty()) return settled(options.back());
  if (alone.empty()) return std::nullopt;
  const bool is_either = alone.size() > 1 && is_one_of_several(response, alone[alone.size() - 2], letters) &&
                         response.substr(alone[alone.size() - 2].end, 2) != ", ";  // "not A, B"
  return is_either ? std::nullopt : std::optional(alone.back().letter);
}

std::string choice_normal(std::string_view text) {
  std::string out;
  for (unsigned char c : text) {
    if (std::isalnum(c))
      out += static_cast<char>(std::tolower(c));
    else if (!out.empty() && out.back() != ' ')
      out += ' ';
  }
  return trimmed(out);
}

ChoiceGold choice_gold(const std::string& gold, const std::vector<std::string>& choices) {
  const std::string text = trimmed(gold);
  if (text.size() == 1 && std::isalpha(static_cast<unsigned char>(text[0]))) {
    const char letter = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
    if (letter <= 'J') return {letter, ""};
  }
  for (size_t i = 0; i < choices.size(); ++i)
    if (choice_normal(choices[i]) == choice_normal(text)) return {static_cast<char>('A' + i), text};
  return {std::nullopt, text};
}

ChoiceGold choice_gold_at(int64_t index, const std::vector<std::string>& choices) {
  if (index < 0 || index > 9) return {};
  return {static_cast<char>('A' + index), index < static_cast<int64_t>(choices.size()) ? choices[static_cast<size_t>(index)] : ""};
}

std::string_view letters_of(const std::vector<std::string>& choices) {
  constexpr std::string_view kAll = "ABCDEFGHIJ";
  return choices.empty() ? kAll : kAll.substr(0, choices.size());
}

// A text without what may stand around it.
static std::string written_alone(std::string_view text) {
  std::string out = replaced(replaced(lower_ascii(text), "\\text", ""), "\\boxed", "");
  constexpr std::string_view kAround = "${}*_\"'`";
  std::erase_if(out, [&](char c) { return std::isspace(static_cast<unsigned char>(c)) || kAround.find(c) != std::string_view::npos; });
  while (out.ends_with('.')) out.pop_back();
  return out;
}

double choice_score(std::string_view response, const ChoiceGold& gold, const std::vector<std::string>& choices) {
  if (const auto letter = choice_letter(response, letters_of(choices))) return gold.letter && *letter == *gold.letter ? 1.0 : 0.0;
  // Of a text that names a choice: its box, or what it announces; else all of it.
  static const TrustedRegex kSaid(R"((?i)\banswer\s*+(?:is\b|:)\s*+([^.\n]*+))");
  if (const size_t thought = response.rfind("</think>"); thought != std::string_view::npos) response.remove_prefix(thought + 8);
  std::string part;
  for (Regex::Scan scan(kSaid, response); scan.next();) part = scan.text(1);
  if (const auto box = dapo_last_boxed(response)) part = *box;
  for (const char* other : {", not ", ", rather than ", " rather than ", " instead of "})
    if (const size_t at = part.find(other); at != std::string::npos) part.resize(at);
  if (gold.letter && gold.text.empty()) {  // the text of a right letter: as it is, and alone
    const auto at = static_cast<size_t>(*gold.letter - 'A');
    return at < choices.size() && written_alone(part.empty() ? response : part) == written_alone(choices[at]) ? 1.0 : 0.0;
  }
  const auto names_one = [&](const std::string& text) {
    const std::string spaced = " " + choice_normal(text) + " ";
    return std::ranges::any_of(choices, [&](const std::string& choice) {
      const std::string normal = choice_normal(choice);
      return !normal.empty() && spaced.find(" " + normal + " ") != std::string::npos;
    });
  };
  const std::string wanted = choice_normal(gold.text),
                    said = " " + choice_normal(names_one(part) ? std::string_view(part) : response) + " ";
  const auto holds = [&said](const std::string& text) { return !text.empty() && said.find(" " + text + " ") != std::string::npos; };
  const bool holds_another = std::ranges::any_of(choices, [&](const std::string& choice) {
    const std::string other = choice_normal(choice);
    return other != wanted && wanted.find(other) == std::string::npos && holds(other);
  });
  const std::string before = said.substr(0, said.find(" " + wanted + " ")) + " ";
  const auto denies = [&before](const char* word) {
    const size_t at = before.rfind(word);
    return at != std::string::npos && before.size() - at < 30;
  };
  const bool is_denied = denies(" not ") || denies(" isn t ") || denies(" wasn t ") || denies(" never ") || denies(" neither ");
  return holds(wanted) && !holds_another && !is_denied ? 1.0 : 0.0;
}

std::string f1_normal(std::string_view text) {
  static const TrustedRegex kArticles(R"(\b(?:a|an|the)\b)");
  std::string plain = lower_ascii(text);
  std::erase_if(plain, [](unsigned char c) { return c < 128 && std::ispunct(c); });
  return joined(words_of(kArticles.replaced_in(plain, [](const Regex::Scan&) { return " "; })), " ");
}

F1 f1_score(std::string_view response, std::string_view gold) {
  const std::string a = f1_normal(response), b = f1_normal(gold);
  auto is_verdict = [](const std::string& s) { return s == "yes" || s == "no" || s == "noanswer"; };
  if (a != b && (is_verdict(a) || is_verdict(b))) return {};
  const std::vector<std::string> given = words_of(a), right = words_of(b);
  std::map<std::string, int> left;
  for (const std::string& word : right) ++left[word];
  int shared = 0;
  for (const std::string& word : given)
    if (left[word]-- > 0) ++shared;
  if (shared == 0) return {};
  const double precision = static_cast<double>(shared) / static_cast<double>(given.size()),
               recall = static_cast<double>(shared) / static_cast<double>(right.size());
  return {2 * precision * recall / (precision + recall), precision, recall};
}

bool has_think_format(std::string_view response) {
  return response.starts_with("<think>") && response.find("<think>", 1) == std::string_view::npos &&
         response.find("</think>") != std::string_view::npos;
}

double cosine_score(bool right, int64_t tokens, const CosineRange& range) {
  const double progress = std::min(static_cast<double>(tokens) / static_cast<double>(range.max_tokens), 1.0);
  // Bounds swap for wrong answers, so that a long wrong answer is punished less than a short one.
  const double low = right ? range.min_right : range.max_wrong, high = right ? range.max_right : range.min_wrong;
  return low + 0.5 * (high - low) * (1.0 + std::cos(progress * std::numbers::pi));
}

std::vector<double> length_rewards(const std::vector<bool>& right, std::span<const int64_t> tokens) {
  std::vector<double> rewards(tokens.size());
  if (tokens.empty()) return rewards;
  const auto [shortest, longest] = std::minmax_element(tokens.begin(), tokens.end());
  if (*shortest == *longest) return rewards;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const double reward = 0.5 - static_cast<double>(tokens[i] - *shortest) / static_cast<double>(*longest - *shortest);
    rewards[i] = right[i] ? reward : std::min(0.0, reward);
  }
  return rewards;
}

double repetition_penalty(std::span<const int64_t> items, int64_t ngram, double max_penalty) {
  if (ngram < 1 || static_cast<int64_t>(items.size()) < ngram) return 0;
  std::set<std::vector<int64_t>> distinct;
  const size_t total = items.size() - static_cast<size_t>(ngram) + 1;
  for (size_t i = 0; i < total; ++i)
    distinct.emplace(items.begin() + static_cast<ptrdiff_t>(i), items.begin() + static_cast<ptrdiff_t>(i) + ngram);
  return (1.0 - static_cast<double>(distinct.size()) / static_cast<double>(total)) * max_penalty;
}

std::vector<int64_t> words_as_items(std::string_view text) {
  std::map<std::string, int64_t> numbers;
  std::vector<int64_t> items;
  for (const std::string& word : words_of(std::string(text)))
    items.push_back(numbers.emplace(word, static_cast<int64_t>(numbers.size())).first->second);
  return items;
}

double overlong_ramp(int64_t tokens, int64_t limit, int64_t cache) {
  const int64_t free = limit - cache;
  return tokens <= free ? 0.0 : static_cast<double>(free - tokens) / static_cast<double>(cache);
}

double overlong_penalty(int64_t tokens, int64_t limit, int64_t cache) {
  return tokens <= limit ? overlong_ramp(tokens, limit, cache) : -1.0;
}

std::optional<std::string> deepscaler_answer(std::string_view response) {
  for (std::string_view marker : {"</think>", "###Response"})
    if (const size_t at = response.rfind(marker); at != std::string_view::npos) return boxed_answer(response.substr(at + marker.size()));
  return std::nullopt;
}

double tag_score(std::string_view response) {
  double score = 0;
  size_t after = 0;
  for (std::string_view tag : {"<think>", "</think>", "<answer>", "</answer>"}) {
    const size_t at = response.find(tag);
    if (at == std::string_view::npos || at != response.rfind(tag) || at < after) continue;  // once, and in this order
    score += 0.05;
    after = at + tag.size();
  }
  std::string_view outside_text = response;
  std::string outside;
  for (auto [open, close] : {std::pair<std::string_view, std::string_view>{"<think>", "</think>"}, {"<answer>", "</answer>"}}) {
    const size_t begin = outside_text.find(open), end = outside_text.find(close, begin == std::string_view::npos ? 0 : begin);
    if (begin == std::string_view::npos || end == std::string_view::npos) continue;
    outside += outside_text.substr(0, begin);
    outside_text.remove_prefix(end + close.size());
  }
  outside += outside_text;
  return std::max(0.0, score - std::min(0.1, 0.001 * static_cast<double>(text::num_characters(outside))));
}

bool shows_steps(std::string_view response) {
  static const TrustedRegex kNumbered(R"((?im)(?:^|\s)(?:step\s+)?\d{1,2}[.):]\s)");
  const size_t open = response.find("<think>"), close = response.find("</think>");
  if (open != std::string_view::npos && close != std::string_view::npos && open < close)
    response = response.substr(open + 7, close - open - 7);
  const auto is_blank = [](std::string_view line) { return trimmed(line).empty(); };
  return std::ranges::count(split(response, '\n'), false, is_blank) >= 3 || find_all(kNumbered, response).size() >= 3;
}

}  // namespace tandem::reward
