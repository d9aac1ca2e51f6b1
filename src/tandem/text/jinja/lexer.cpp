// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/jinja/lexer.h"

#include <algorithm>
#include <cctype>

#include "tandem/base/error.h"
#include "tandem/text/jinja_value/characters.h"
#include "tandem/text/unicode.h"

namespace tandem::text::jinja {
namespace {

// Line ends become \n; one at the very end belongs to the file, not to the text.
std::string normalized(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || static_cast<unsigned char>(c) >= 0x80; }
bool is_decimal(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  Lexer(std::string_view source, std::string where) : source_(normalized(source)), where_(std::move(where)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const size_t tag = next_tag(at_);
      if (tag == std::string::npos) {
        add_data(source_.substr(at_));
        advance(source_.size());
        break;
      }
      read_tag(tag);
    }
    tokens_.push_back({TokenKind::kEnd, "", line_});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& remedy) const {
    throw UserError(where_ + ":" + std::to_string(line_), what, remedy);
  }

  size_t next_tag(size_t from) const {
    for (size_t at = source_.find('{', from); at != std::string::npos; at = source_.find('{', at + 1))
      if (at + 1 < source_.size() && std::string_view("{%#").find(source_[at + 1]) != std::string_view::npos) return at;
    return std::string::npos;
  }

  // Everything up to `end` is read.
  void advance(size_t end) {
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<ptrdiff_t>(at_), source_.begin() + static_cast<ptrdiff_t>(end), '\n'));
    if (end > at_) at_line_start_ = source_[end - 1] == '\n';
    at_ = end;
  }

  void add_data(std::string text) {
    if (!text.empty()) tokens_.push_back({TokenKind::kData, std::move(text), line_});
  }

  char at(size_t position) const { return position < source_.size() ? source_[position] : '\0'; }

  // The text before a tag. A `-` takes all blanks off its end; a block takes those between it and the start of its line.
  std::string before_tag(size_t tag) const {
    std::string text = source_.substr(at_, tag - at_);
    const char sign = at(tag + 2);
    if (sign == '-') return std::string(strip(text, Side::kRight));
    if (sign == '+' || at(tag + 1) == '{') return text;
    const size_t line = text.rfind('\n') + 1;  // 0 if there is none
    if ((line > 0 || at_line_start_) && is_space(std::string_view(text).substr(line))) text.resize(line);
    return text;
  }

  void read_tag(size_t tag) {
    add_data(before_tag(tag));
    const char kind = source_[tag + 1];
    const bool signed_tag = at(tag + 2) == '-' || at(tag + 2) == '+';
    advance(tag);
    if (kind == '#') return read_comment(tag + 2);
    const size_t inside = tag + (signed_tag ? 3 : 2);
    if (kind == '%' && read_raw(inside)) return;
    tokens_.push_back({kind == '{' ? TokenKind::kPrintBegin : TokenKind::kBlockBegin, "", line_});
    advance(inside);
    read_expression(kind == '{');
  }

  void read_comment(size_t inside) {
    const size_t close = source_.find("#}", inside);
    if (close == std::string::npos) fail("the comment has no end", "expected #}");
    end_tag(close, close > inside ? source_[close - 1] : '\0', true);
  }

  // Passes the two characters that close a tag, and the white space its sign takes.
  void end_tag(size_t close, char sign, bool block) {
    size_t end = close + 2;
    if (sign == '-') {
      while (end < source_.size()) {
        const Utf8Step step = utf8_step(std::string_view(source_).substr(end));
        if (!is_space(step.code_point)) break;
        end += step.length;
      }
    } else if (block && sign != '+' && at(end) == '\n') {
      ++end;
    }
    advance(end);
  }

  size_t skip_blanks(size_t from) const {
    while (from < source_.size() && std::isspace(static_cast<unsigned char>(source_[from]))) ++from;
    return from;
  }

  // Where the `%}` of a tag stands that holds `word` alone, or npos.
  size_t close_of_word(size_t inside, std::string_view word) const {
    size_t end = skip_blanks(inside);
    if (source_.compare(end, word.size(), word) != 0 || is_word(at(end + word.size()))) return std::string::npos;
    end = skip_blanks(end + word.size());
    if (at(end) == '-' || at(end) == '+') ++end;
    return source_.compare(end, 2, "%}") == 0 ? end : std::string::npos;
  }

  bool read_raw(size_t inside) {
    const size_t close = close_of_word(inside, "raw");
    if (close == std::string::npos) return false;
    end_tag(close, source_[close - 1] == '-' ? '-' : '+', false);
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
      const bool signed_tag = at(tag + 2) == '-' || at(tag + 2) == '+';
      const size_t end = close_of_word(tag + (signed_tag ? 3 : 2), "endraw");
      if (end == std::string::npos) continue;
      add_data(before_tag(tag));
      end_tag(end, source_[end - 1], true);
      return true;
    }
    fail("`raw` has no end", "expected {% endraw %}");
  }

  void read_expression(bool print) {
    const std::string_view end = print ? "}}" : "%}";
    std::string open;  // brackets that are not closed yet
    while (true) {
      if (at_ >= source_.size()) fail("the template ends inside of a tag", "expected " + std::string(end));
      const size_t sign = at(at_) == '-' || (at(at_) == '+' && !print) ? 1 : 0;
      if (open.empty() && source_.compare(at_ + sign, 2, end) == 0) {
        tokens_.push_back({print ? TokenKind::kPrintEnd : TokenKind::kBlockEnd, "", line_});
        return end_tag(at_ + sign, sign ? source_[at_] : '\0', !print);
      }
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const char c = source_[at_];
    if (std::isspace(static_cast<unsigned char>(c))) return advance(at_ + 1);
    if (is_decimal(c)) return read_number();
    if (is_word(c)) {
      size_t end = at_;
      while (end < source_.size() && is_word(source_[end])) ++end;
      return add(TokenKind::kName, end);
    }
    if (c == '\'' || c == '"') return read_string(c);
    for (const std::string_view two : {"//", "**", "==", "!=", ">=", "<="})
      if (source_.compare(at_, 2, two) == 0) return add(TokenKind::kOperator, at_ + 2);
    if (std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string_view::npos)
      fail("`" + source_.substr(at_, utf8_step(std::string_view(source_).substr(at_)).length) +
               "` is not part of a template's language",
           "expected an expression");
    balance(c, open);
    add(TokenKind::kOperator, at_ + 1);
  }

  void balance(char c, std::string& open) const {
    constexpr std::string_view kOpening = "([{", kClosing = ")]}";
    if (kOpening.find(c) != std::string_view::npos) open += c;
    const size_t closing = kClosing.find(c);
    if (closing == std::string_view::npos) return;
    if (open.empty() || open.back() != kOpening[closing])
      fail(std::string("`") + c + "` closes nothing",
           open.empty() ? "expected no bracket" : std::string("expected the end of `") + open.back() + "`");
    open.pop_back();
  }

  void add(TokenKind kind, size_t end) {
    tokens_.push_back({kind, source_.substr(at_, end - at_), line_});
    advance(end);
  }

  size_t digits(size_t from) const {
    while (is_decimal(at(from)) || (at(from) == '_' && is_decimal(at(from + 1)))) ++from;
    return from;
  }

  void read_number() {
    const bool after_dot = !tokens_.empty() && tokens_.back().kind == TokenKind::kOperator && tokens_.back().text == ".";
    if (at(at_) == '0' && std::string_view("xXoObB").find(at(at_ + 1)) != std::string_view::npos) {
      size_t end = at_ + 2;
      while (std::isxdigit(static_cast<unsigned char>(at(end))) || at(end) == '_') ++end;
      return add_number(TokenKind::kInteger, end);
    }
    size_t end = digits(at_);
    TokenKind kind = TokenKind::kInteger;
    if (!after_dot && at(end) == '.' && is_decimal(at(end + 1))) {
      end = digits(end + 1);
      kind = TokenKind::kFloat;
    }
    const size_t exponent = end + (at(end + 1) == '+' || at(end + 1) == '-' ? 2 : 1);
    if (!after_dot && (at(end) == 'e' || at(end) == 'E') && is_decimal(at(exponent))) {
      end = digits(exponent);
      kind = TokenKind::kFloat;
    }
    add_number(kind, end);
  }

  void add_number(TokenKind kind, size_t end) {
    add(kind, end);
    std::erase(tokens_.back().text, '_');
  }

  void read_string(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("a text in quotes has no end", std::string("expected ") + quote);
    std::string text = unescaped(std::string_view(source_).substr(at_ + 1, end - at_ - 1));
    tokens_.push_back({TokenKind::kString, std::move(text), line_});
    advance(end + 1);
  }

  std::string unescaped(std::string_view text) const {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\')
        out += text[i];
      else
        i = escape(text, i + 1, out);
    }
    return out;
  }

  // Adds what the escape at `i` (behind its backslash) stands for, and returns where it ends.
  size_t escape(std::string_view text, size_t i, std::string& out) const {
    constexpr std::string_view kLetters = "ntr\\'\"abfv\n", kMeanings = "\n\t\r\\'\"\a\b\f\v";
    const char c = text[i];
    if (const size_t known = kLetters.find(c); known != std::string_view::npos) {
      if (c != '\n') out += kMeanings[known];
      return i;
    }
    if (c == 'x') return coded(text, i + 1, 2, out);
    if (c == 'u') return coded(text, i + 1, 4, out);
    if (c == 'U') return coded(text, i + 1, 8, out);
    if (c == 'N') fail("the escape \\N{...} is not supported", "expected \\u and four digits");
    if (c >= '0' && c <= '7') {
      char32_t number = 0;
      size_t end = i;
      for (; end < std::min(i + 3, text.size()) && text[end] >= '0' && text[end] <= '7'; ++end)
        number = number * 8 + static_cast<char32_t>(text[end] - '0');
      append_utf8(out, number);
      return end - 1;
    }
    (out += '\\') += c;
    return i;
  }

  size_t coded(std::string_view text, size_t begin, size_t length, std::string& out) const {
    const std::string_view digits = text.substr(std::min(begin, text.size()), length);
    const bool hex =
        digits.size() == length && std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isxdigit(c); });
    const unsigned long number = hex ? std::stoul(std::string(digits), nullptr, 16) : 0x110000;
    if (number > 0x10FFFF || (number >= 0xD800 && number <= 0xDFFF))
      fail("`\\" + std::string(text.substr(begin - 1, length + 1)) + "` is no character",
           "expected the number of a Unicode character");
    append_utf8(out, static_cast<char32_t>(number));
    return begin + length - 1;
  }

  std::string source_, where_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& where) {
  if (!is_utf8(source)) throw UserError(where, "is not UTF-8", "expected a template in UTF-8");
  return Lexer(source, where).run();
}

}  // namespace tandem::text::jinja
