// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/pipeline/split_pattern.h"

#include <utf8proc.h>

#include <algorithm>
#include <optional>

#include "tandem/base/error.h"
#include "tandem/text/unicode.h"

namespace tandem::text {
namespace {

using NodeKind = PatternNode::Kind;

constexpr int kMostRepeats = 1000, kDeepestGroup = 50, kMostAtoms = 10'000;  // each may be hundreds of ranges

PatternNode chars(CharSet set) {
  PatternNode node;
  node.kind = NodeKind::kChars;
  node.set = std::move(set);
  return node;
}

PatternNode look(CharSet set, bool at_end) {
  PatternNode node = chars(std::move(set));
  node.kind = NodeKind::kLook;
  node.at_end = at_end;
  return node;
}

bool has_case(char32_t c) {
  const auto point = static_cast<utf8proc_int32_t>(c);
  return utf8proc_tolower(point) != point || utf8proc_toupper(point) != point;
}

class Parser {
 public:
  Parser(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {
    if (!is_utf8(pattern)) refuse("bytes that are not UTF-8");
  }

  PatternNode parse() {
    PatternNode whole = alternatives();
    if (!done()) refuse("an unmatched `)`");
    return whole;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    const std::string shown = std::string(pattern_.substr(0, 200)) + (pattern_.size() > 200 ? "..." : "");
    throw UserError(where_, "the pattern `" + shown + "` has " + what + " before offset " + std::to_string(at_),
                    "known are literals, classes, \\s \\d \\w \\p{L}, groups, (?i:..), |, * + ? {m,n}, (?!\\S), $ and \\z");
  }

  bool done() const { return at_ == pattern_.size(); }
  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    if (!next_is(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t take_char() {
    if (done()) refuse("an unfinished end");
    const Utf8Step step = utf8_step(pattern_.substr(at_, 4));
    at_ += step.length;
    return step.code_point;
  }

  PatternNode alternatives() {
    PatternNode node;
    node.kind = NodeKind::kAlternatives;
    do node.parts.push_back(sequence());
    while (take("|"));
    return node.parts.size() == 1 ? PatternNode(std::move(node.parts[0])) : node;
  }

  PatternNode sequence() {
    PatternNode node;
    while (!done() && !next_is("|") && !next_is(")")) node.parts.push_back(repeated(atom()));
    return node.parts.size() == 1 ? PatternNode(std::move(node.parts[0])) : node;
  }

  std::optional<int> number() {
    const size_t begin = at_;
    int value = 0;
    while (!done() && pattern_[at_] >= '0' && pattern_[at_] <= '9') {
      value = value * 10 + (pattern_[at_++] - '0');
      if (value > kMostRepeats) refuse("a count over " + std::to_string(kMostRepeats));
    }
    return at_ == begin ? std::nullopt : std::optional<int>(value);
  }

  PatternNode repeated(PatternNode body) {
    PatternNode node;
    node.kind = NodeKind::kRepeat;
    if (take("*")) {
    } else if (take("+")) {
      node.min = 1;
    } else if (take("?")) {
      node.max = 1;
    } else if (take("{")) {
      const auto low = number();
      const bool comma = take(",");
      const auto high = number();
      if (!take("}") || (!low && !high)) refuse("a brace that is no count");
      node.min = low.value_or(0);
      node.max = comma ? high.value_or(PatternNode::kNoMax) : node.min;
      if (node.max != PatternNode::kNoMax && node.max < node.min) refuse("a count that ends before it begins");
    } else {
      return body;
    }
    if (body.kind == NodeKind::kLook) refuse("a repeated lookahead");
    node.lazy = take("?");
    if (next_is("+") || next_is("*") || next_is("?") || next_is("{")) refuse("a repetition of a repetition, or a possessive one,");
    node.parts.push_back(std::move(body));
    return node;
  }

  PatternNode atom() {
    if (++num_atoms_ > kMostAtoms) refuse("more than " + std::to_string(kMostAtoms) + " characters and classes");
    if (take("(")) return group();
    if (take("[")) return chars(bracket());
    if (take(".")) return chars(CharSet('\n').complement());
    if (take("$")) return look(CharSet('\n'), true);
    if (next_is("*") || next_is("+") || next_is("?") || next_is("{")) refuse("a repetition of nothing");
    if (take("^")) refuse("`^`");
    if (take("\\z")) return look(CharSet(), true);
    if (take("\\")) return chars(escape());
    const char32_t c = take_char();
    return chars(folded(literal(c, c)));
  }

  PatternNode group() {
    if (++depth_ > kDeepestGroup) refuse("groups in groups in groups");
    const bool ignore_case = ignore_case_;
    const bool negative = take("?!"), positive = !negative && take("?=");
    if (negative || positive) {
    } else if (take("?i:")) {
      ignore_case_ = true;
    } else if (take("?-i:")) {
      ignore_case_ = false;
    } else if (!take("?:") && next_is("?")) {
      refuse("a group of the kind `(" + std::string(pattern_.substr(at_, 2)) + "`");
    }
    PatternNode body = alternatives();
    if (!take(")")) refuse("a `(` without its `)`");
    ignore_case_ = ignore_case;
    --depth_;
    if (!negative && !positive) return body;
    if (body.kind != NodeKind::kChars) refuse("a lookahead at more than one character");
    return look(negative ? body.set.complement() : body.set, negative);
  }

  // Under (?i: an ASCII letter stands for both cases and for what folds to it.
  CharSet folded(CharSet set) const {
    if (!ignore_case_) return set;
    CharSet out = set;
    for (char32_t lower = 'a'; lower <= 'z'; ++lower) {
      const char32_t upper = lower - 'a' + 'A', other = lower == 's' ? 0x17F : lower == 'k' ? 0x212A : lower;
      if (set.contains(lower) || set.contains(upper) || set.contains(other))
        out.add(CharSet(lower)).add(CharSet(upper)).add(CharSet(other));
    }
    return out;
  }

  CharSet literal(char32_t first, char32_t last) const {
    for (char32_t c = std::max<char32_t>(first, 128); ignore_case_ && c <= last; ++c)
      if (has_case(c)) refuse("a letter beyond ASCII under (?i:");
    return CharSet(first, last);
  }

  char32_t hexadecimal() {
    const bool braces = take("{");
    char32_t value = 0;
    size_t digits = 0;
    for (; digits < (braces ? 6u : 2u) && !done(); ++digits, ++at_) {
      const char c = pattern_[at_];
      const int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
      if (digit < 0) break;
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (digits == 0 || (braces && !take("}")) || value > CharSet::kLast || (!braces && value > 127)) refuse("a malformed \\x");
    return value;
  }

  CharSet property(bool negative) {
    if (!take("{")) refuse("\\p without its brace");
    if (take("^")) negative = !negative;
    const size_t end = pattern_.find('}', at_);
    if (end == std::string_view::npos) refuse("\\p{ without its end");
    const std::string_view name = pattern_.substr(at_, end - at_);
    at_ = end + 1;
    const auto set = CharSet::category(name);
    if (!set) refuse("the property `" + std::string(name) + "`, which is no general category,");
    if (ignore_case_ && (name == "Lu" || name == "Ll" || name == "Lt")) refuse("\\p{" + std::string(name) + "} under (?i:");
    return negative ? set->complement() : *set;
  }

  // What follows a backslash.
  CharSet escape() {
    const char32_t c = take_char();
    switch (c) {
      case 's': return CharSet::space();
      case 'S': return CharSet::space().complement();
      case 'd': return *CharSet::category("Nd");
      case 'D': return CharSet::category("Nd")->complement();
      case 'w': return CharSet::word();
      case 'W': return CharSet::word().complement();
      case 'p': return property(false);
      case 'P': return property(true);
      case 'x': return folded(CharSet(hexadecimal()));
      case 'n': return CharSet('\n');
      case 'r': return CharSet('\r');
      case 't': return CharSet('\t');
      case 'f': return CharSet('\f');
      case 'v': return CharSet('\v');
      default: break;
    }
    if (c < 128 && ((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z')))
      refuse(std::string("the escape `\\") + static_cast<char>(c) + "`");
    return literal(c, c);
  }

  CharSet class_item() {
    if (take("\\")) return escape();
    const char32_t c = take_char();
    return literal(c, c);
  }

  CharSet bracket() {
    const bool negative = take("^");
    CharSet set;
    while (!take("]")) {
      if (done()) refuse("a `[` without its `]`");
      if (next_is("[") || next_is("&&")) refuse("a class within a class");
      CharSet item = class_item();
      if (next_is("-") && !next_is("-]")) {
        take("-");
        if (next_is("[")) refuse("a class within a class");
        item = range(item, class_item());
      }
      set.add(item);
    }
    if (set.empty()) refuse("an empty class");
    set = folded(std::move(set));
    return negative ? set.complement() : set;
  }

  CharSet range(const CharSet& first, const CharSet& last) const {
    auto single = [](const CharSet& set) { return set.ranges().size() == 1 && set.ranges()[0].first == set.ranges()[0].second; };
    if (!single(first) || !single(last) || first.ranges()[0].first > last.ranges()[0].first) refuse("a malformed range");
    return literal(first.ranges()[0].first, last.ranges()[0].first);
  }

  std::string_view pattern_;
  const std::string& where_;
  size_t at_ = 0;
  int depth_ = 0, num_atoms_ = 0;
  bool ignore_case_ = false;
};

}  // namespace

PatternNode parse_pattern(std::string_view pattern, const std::string& where) { return Parser(pattern, where).parse(); }

PatternNode literal_pattern(std::string_view text) {
  PatternNode node;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at, 4));
    node.parts.push_back(chars(CharSet(step.code_point)));
    at += step.length;
  }
  return node;
}

}  // namespace tandem::text
