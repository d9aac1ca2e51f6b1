// SPDX-License-Identifier: Apache-2.0
// Where the answer stands in a solution. Hostile texts are read in linear time, too.
#include <algorithm>
#include <cctype>
#include <vector>

#include "tandem/base/strings.h"
#include "tandem/reward/math/formula.h"
#include "tandem/reward/math/math_answer.h"
#include "tandem/reward/math/notation.h"
#include "tandem/text/unicode.h"

namespace tandem::reward {
namespace {

constexpr size_t kLongestJoint = 60;   // characters between two boxes of one list
constexpr size_t kMostBoxes = 20;
constexpr int kWordsOfASentence = 4;
constexpr size_t kLongestBareAnswer = 100;

// Punctuation, blanks and at most five words, the last of them "and" or "or".
bool joins_boxes(std::string text) {
  for (const char* gone : {"\\text", "\\quad", "\\qquad", "\\mbox", "\\ "}) text = replaced(text, gone, " ");
  if (text.find("\n\n") != std::string::npos || text.find(". ") != std::string::npos || text.find('=') != std::string::npos) return false;
  std::vector<std::string> words(1);
  for (char c : text) {
    if (is_letter(c)) words.back() += c;
    else if (is_digit(c)) return false;
    else if (!words.back().empty()) words.emplace_back();
  }
  if (words.back().empty()) words.pop_back();
  if (words.empty()) return true;
  return words.size() <= 5 && (words.back() == "and" || words.back() == "or");
}

// `, y = ` between two boxes: a list of the values of both.
bool names_the_next(std::string text) {
  for (const char* gone : {"\\text", "\\quad", "\\qquad", "\\mbox", "\\ ", "$"}) text = replaced(text, gone, " ");
  static const TrustedRegex kName(R"(^[\s,;{}]*(?:and[\s{}]*)?\\?[A-Za-z](?:_\{?\w\}?)?\s*=\s*$)");
  return kName.found_in(text);
}

// A minus of the box, as in `x = -\boxed{5}`; not that of a difference, nor of a list of points.
bool has_minus(std::string_view text, size_t box) {
  if (box == 0 || text[box - 1] != '-') return false;
  const std::string_view before = text.substr(0, box - 1);
  const size_t last = before.find_last_not_of(" ");
  return last == std::string_view::npos || std::string_view("\n=$([:,").find(before[last]) != std::string_view::npos;
}

// The end of the sentence or line that begins at `begin`; a full stop within a leading formula ends nothing.
size_t sentence_end(std::string_view text, size_t begin) {
  size_t at = begin + 1;
  if (text[begin] == '$')
    if (const auto formula = formula_at_dollar(text, begin)) at = formula->end;
  for (; at < text.size() && text[at] != '\n'; ++at)
    if (text[at] == '.' && (at + 1 == text.size() || std::isspace(static_cast<unsigned char>(text[at + 1])))) break;
  return at;
}

std::string last_number_in(std::string_view text) {
  static const TrustedRegex kNumber(R"((-?(?:\d[\d,]*\.?\d*|\.\d+)(?:/\d+)?%?))");
  std::string found;
  for (text::Regex::Scan scan(kNumber, text); scan.next();) found = scan.text(1);
  return found;
}

// The result of the last equation in the last line, as in `60 + 75 = 135 miles to the 4 islands`; the last number without one.
std::string last_result_in(std::string_view text) {
  // A number before an operator is no result: 6 = 2 * 3.
  static const TrustedRegex kResult(R"(=\s*+\$?+\s*+((?>-?(?:\d[\d,]*\.?\d*|\.\d+)(?:/\d+)?%?))(?!\s*+[-+*/x]\s*+[\d$(]))");
  // The unknown may stand on the right: `160 = Y.`
  static const TrustedRegex kOfUnknown(R"((?<![\d.,])(-?(?>\d[\d,]*\.?\d*|\.\d+))\s*+=\s*+[A-Za-z]\.?$)");
  const std::string whole = trimmed(text);
  const std::string_view line = std::string_view(whole).substr(whole.rfind('\n') + 1);
  std::string found;
  for (text::Regex::Scan scan(kOfUnknown, line); scan.next();) found = scan.text(1);
  if (!found.empty()) return found;
  for (text::Regex::Scan scan(kResult, line); scan.next();) found = scan.text(1);
  return found.empty() ? last_number_in(whole) : found;
}

// An announced answer may be a sentence: its formula, or what it says something is.
std::string core_of(const std::string& announced) {
  if (is_mathematical(announced)) return announced;
  for (const char* verb : {" is ", " are ", " equals "})
    if (const size_t at = announced.rfind(verb); at != std::string::npos) {
      const std::string rest = trimmed(announced.substr(at + std::string_view(verb).size()));
      if (!rest.empty() && is_mathematical(rest)) return rest;
    }
  if (const std::string formula = last_formula(announced); !formula.empty() && is_mathematical(formula)) return formula;
  const bool is_sentence = std::count(announced.begin(), announced.end(), ' ') >= kWordsOfASentence;
  const std::string number = is_sentence ? last_number_in(announced) : "";
  return number.empty() ? announced : number;
}

std::string announced_at(std::string_view response, size_t begin) {
  std::string answer = trimmed(response.substr(begin, sentence_end(response, begin) - begin));
  if (answer.ends_with("**")) answer = trimmed(std::string_view(answer).substr(0, answer.size() - 2));
  for (const char* other : {", not ", ", rather than ", " rather than ", " instead of "})
    if (const size_t at = answer.find(other); at != std::string::npos && at > 0) answer.resize(at);
  return answer;
}

// What follows the last "answer is", "answer:" or "####"; "" if nothing does. Linear in the text: every gap is possessive, and
// only the last two places are read.
std::string last_announced(std::string_view response) {
  static const TrustedRegex kAnnounced(R"((?i)(?:answer\s*+(?:is|:|=)|####)\s*+:?+\s*+(?:\*\*)?+\s*+(?=\S))");
  size_t last = std::string_view::npos, before = std::string_view::npos;
  for (text::Regex::Scan scan(kAnnounced, response); scan.next();) {
    before = last;
    last = scan.group().end;
  }
  for (size_t begin : {last, before}) {
    if (begin == std::string_view::npos) continue;
    if (const std::string answer = announced_at(response, begin); !answer.empty()) return core_of(answer);
  }
  return "";
}

struct Box {
  std::string inner;
  size_t end;  // behind it
};

// The box whose command ends at `at`: a group, or what stands up to the next blank; nullopt where its brace is never closed.
std::optional<Box> box_at(std::string_view text, size_t at) {
  const size_t open = std::min(text.find_first_not_of(' ', at), text.size());
  if (open < text.size() && text[open] == '{') {
    const size_t end = group_end(text, open);
    return end == std::string_view::npos ? std::nullopt : std::optional(Box{trimmed(text.substr(open + 1, end - open - 2)), end});
  }
  const size_t end = std::min(text.find_first_of(" \n$", open), text.size());
  return Box{trimmed(text.substr(open, end - open)), end};
}

}  // namespace

std::optional<std::string> boxed_answers(std::string_view text) {
  const std::string_view command = text.find("\\boxed") != std::string_view::npos ? "\\boxed" : "\\fbox";
  std::string list;
  std::vector<std::string> read;  // of the list, each once
  size_t next = std::string_view::npos;
  const auto is_joint = [](const std::string& between) { return joins_boxes(between) || names_the_next(between); };
  for (size_t begin = text.rfind(command), num = 0; begin != std::string_view::npos && num < kMostBoxes; ++num) {
    auto box = box_at(text, begin + command.size());
    if (box && !box->inner.empty() && has_minus(text, begin)) {
      const bool is_sum = box->inner.find_first_of("+-", 1) != std::string::npos;
      box->inner = is_sum ? "-(" + box->inner + ")" : "-" + box->inner;
    }
    if (!box && next == std::string_view::npos) return "";  // the response ends in its box
    const bool joins = box && (next == std::string_view::npos ||
                               (box->end <= next && next - box->end <= kLongestJoint && is_joint(std::string(text.substr(box->end,
                                   next - box->end)))));
    if (!joins) break;
    if (const std::string same = normal(box->inner); !box->inner.empty() && std::ranges::find(read, same) == read.end()) {
      read.push_back(same);
      list = list.empty() ? box->inner : box->inner + ", " + list;
    }
    if (!box->inner.empty()) next = begin;
    begin = begin > 0 ? text.rfind(command, begin - 1) : std::string_view::npos;
  }
  return list.empty() ? std::nullopt : std::optional(list);
}

std::optional<std::string> final_answer(std::string_view response) {
  std::string repaired;
  if (!text::is_utf8(response)) response = repaired = text::repair_utf8(response);
  // What is behind the thoughts counts, where it says an answer.
  if (const size_t thought = response.rfind("</think>"); thought != std::string_view::npos) {
    const std::string_view rest = response.substr(thought + 8);
    const std::string whole = trimmed(rest);
    const bool is_answer = whole.size() <= kLongestBareAnswer && !whole.empty() && is_mathematical(whole);
    if (boxed_answers(rest) || is_answer || rest.find("<answer>") != std::string_view::npos || !last_announced(rest).empty())
      response = rest;
  }
  if (auto boxed = boxed_answers(response)) return boxed->empty() ? std::nullopt : boxed;
  if (const size_t open = response.rfind("<answer>"), close = response.rfind("</answer>");
      open != std::string_view::npos && close != std::string_view::npos && open < close)
    return trimmed(response.substr(open + 8, close - open - 8));
  if (const std::string whole = trimmed(response); whole.size() <= kLongestBareAnswer && is_mathematical(whole)) return whole;
  for (const std::string& found : {last_announced(response), last_formula(response), last_result_in(response)})
    if (!found.empty()) return found;
  return std::nullopt;
}

}  // namespace tandem::reward
