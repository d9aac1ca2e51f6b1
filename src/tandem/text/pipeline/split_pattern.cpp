// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/pipeline/split_pattern.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/text/unicode.h"

namespace tandem::text {
namespace {

// Oniguruma's \w: letters and what is written like them, marks, decimal digits, joiners, connectors such as `_`.
constexpr const char* kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}";

bool is_alphanumeric(char c) { return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z'); }

bool has_case(char32_t c) {
  const auto point = static_cast<utf8proc_int32_t>(c);
  return utf8proc_tolower(point) != point || utf8proc_toupper(point) != point;
}

// Writes a pattern anew as PCRE2 reads it. What is malformed beyond that, PCRE2 refuses.
class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string translate() {
    while (at_ < pattern_.size()) {
      if (next_is("*") || next_is("+") || next_is("?") || next_is("{")) refuse("a repetition of nothing");
      if (take("(") || take("|")) {  // what begins anew
        pattern_[at_ - 1] == '(' ? open() : void(out_ += '|');
        continue;
      }
      if (take(")")) close();
      else if (take("[")) bracket();
      else if (take(".")) out_ += "[^\\n]";
      else if (take("$")) out_ += "(?=\\n|\\z)";
      else if (take("\\z")) out_ += "\\z";
      else if (take("\\")) escape(false);
      else if (next_is("^")) refuse("`^`");
      else literal();
      repetition();
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    const std::string shown = std::string(pattern_.substr(0, 200)) + (pattern_.size() > 200 ? "..." : "");
    throw UserError(where_, "the pattern `" + shown + "` has " + what + " before offset " + std::to_string(at_),
                    "known are literals, classes, \\s \\d \\w \\p{L}, groups, (?i:..), |, * + ? {m,n}, (?!\\S), $ and \\z");
  }

  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    if (!next_is(text)) return false;
    at_ += text.size();
    return true;
  }

  void open() {
    bool ignores_case = ignores_case_.back();
    std::string_view kind = "(?:";
    if (next_is("?!") || next_is("?=")) kind = pattern_.substr(at_ - 1, 3);
    if (next_is("?i:") || next_is("?-i:")) ignores_case = next_is("?i:"), kind = ignores_case ? "(?i:" : "(?-i:";
    if (next_is("?") && !take(kind.substr(1))) refuse("a group of the kind `(" + std::string(pattern_.substr(at_, 2)) + "`");
    ignores_case_.push_back(ignores_case);
    out_ += kind;
  }

  void close() {
    if (ignores_case_.size() == 1) refuse("an unmatched `)`");
    ignores_case_.pop_back();
    out_ += ')';
  }

  // A character that stands for itself, wherever it does.
  void literal() {
    const Utf8Step step = utf8_step(pattern_.substr(at_, 4));
    if (ignores_case_.back() && step.code_point >= 128 && has_case(step.code_point)) refuse("a letter beyond ASCII under (?i:");
    out_ += pattern_.substr(at_, step.length);
    at_ += step.length;
  }

  void repetition() {
    const size_t begin = at_;
    if (take("{")) {
      const size_t end = std::min(pattern_.find_first_not_of("0123456789,", at_), pattern_.size());
      std::string_view count = pattern_.substr(at_, end - at_);
      at_ = end;
      if (!take("}") || count.empty() || count == "," || std::ranges::count(count, ',') > 1) refuse("a brace that is no count");
      out_.append(count.starts_with(",") ? "{0" : "{").append(count).append("}");
      if (next_is("?") && count.find(',') == count.npos) refuse("a `?` behind an exact count");
    } else if (take("*") || take("+") || take("?")) {
      out_ += pattern_[begin];
    } else {
      return;
    }
    if (take("?")) out_ += '?';
    if (next_is("+") || next_is("*") || next_is("?") || next_is("{")) refuse("a repetition of a repetition, or a possessive one,");
  }

  // What follows a backslash.
  void escape(bool in_class) {
    if (at_ == pattern_.size()) refuse("an unfinished end");
    const char c = pattern_[at_];
    if (!is_alphanumeric(c)) {
      if (static_cast<uint8_t>(c) < 128) out_ += '\\';
      return literal();
    }
    ++at_;
    const std::string p = c < 'a' ? "\\P" : "\\p";
    switch (c) {
      case 's': case 'S': out_ += p + "{White_Space}"; break;
      case 'd': case 'D': out_ += p + "{Nd}"; break;
      case 'w': case 'W':
        if (in_class && c == 'W') refuse("`\\W` within a class");
        out_.append(in_class ? "" : c == 'W' ? "[^" : "[").append(kWord).append(in_class ? "" : "]");
        break;
      case 'p': case 'P': property(p); break;
      case 'x': hexadecimal(); break;
      case 'v': out_ += "\\x0b"; break;
      case 'n': case 'r': case 't': case 'f': out_.append("\\").append(1, c); break;
      default: refuse(std::string("the escape `\\") + c + "`");
    }
  }

  void property(const std::string& p) {
    const size_t end = pattern_.find('}', at_);
    if (!take("{") || end == std::string_view::npos) refuse("\\p without its braces");
    const std::string_view braced = pattern_.substr(at_, end - at_), name = braced.substr(braced.starts_with("^"));
    at_ = end + 1;
    if (name.empty() || name.size() > 2 || !std::ranges::all_of(name, is_alphanumeric))
      refuse("the property `" + std::string(name) + "`, which is no general category,");
    if (ignores_case_.back() && (name == "Lu" || name == "Ll" || name == "Lt")) refuse("\\p{" + std::string(name) + "} under (?i:");
    out_.append(p).append("{").append(braced).append("}");
  }

  void hexadecimal() {
    const bool braces = take("{");
    uint32_t value = 0;
    const char* begin = pattern_.data() + at_;
    const auto [end, error] = std::from_chars(begin, begin + std::min<size_t>(braces ? 6 : 2, pattern_.size() - at_), value, 16);
    at_ += static_cast<size_t>(end - begin);
    if (error != std::errc() || (braces && !take("}")) || value > (braces ? 0x10FFFFu : 0x7Fu)) refuse("a malformed \\x");
    out_.append("\\x{").append(std::string(begin, end)).append("}");
  }

  void bracket() {
    out_ += take("^") ? "[^" : "[";
    if (next_is("]")) refuse("an empty class");
    while (!take("]")) {
      if (at_ == pattern_.size()) refuse("a `[` without its `]`");
      if (next_is("[") || next_is("&&")) refuse("a class within a class");
      take("\\") ? escape(true) : literal();
    }
    out_ += ']';
  }

  std::string_view pattern_;
  const std::string& where_;
  size_t at_ = 0;
  std::vector<bool> ignores_case_{false};  // of each group that is open
  std::string out_;
};

}  // namespace

Regex compile(const TextPattern& pattern) {
  constexpr size_t kMost_bytes = 10'000;
  if (pattern.text.size() > kMost_bytes)
    throw UserError(pattern.where, "is longer than " + std::to_string(kMost_bytes) + " bytes", "expected a shorter text");
  std::string literal;
  for (const char c : pattern.text) literal += (is_alphanumeric(c) || static_cast<uint8_t>(c) >= 128 ? "" : "\\") + std::string(1, c);
  Regex regex(pattern.regex ? Translator(pattern.text, pattern.where).translate() : literal, pattern.where);
  if (regex.may_match_nothing())
    throw UserError(pattern.where, "the pattern matches the empty text", "expected a pattern that takes at least one character");
  return regex;
}

}  // namespace tandem::text
