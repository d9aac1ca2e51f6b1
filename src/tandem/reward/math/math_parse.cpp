// SPDX-License-Identifier: Apache-2.0
// The parser of math_expr.h: recursive descent over LaTeX and plain text.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "tandem/reward/math/math_expr.h"
#include "tandem/reward/math/notation.h"

namespace tandem::reward {
namespace {

constexpr size_t kMaxLength = 1000;
constexpr size_t kMaxNumeral = 20000;   // characters of a text that is one numeral
constexpr int kMaxDepth = 60;

struct NoExpression {};  // thrown and caught in this file alone

ExprPtr inverse(ExprPtr e) { return node(ExprKind::kPower, {std::move(e), number({-1, 1})}); }

bool is_function(std::string_view name) {
  return is_one_of(name, {"sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "log",
      "lg", "exp"});
}
bool is_trigonometric(std::string_view name) { return is_one_of(name, {"sin", "cos", "tan", "cot", "sec", "csc"}); }

ExprPtr power_of_ten(int64_t exponent) { return node(ExprKind::kPower, {number({10, 1}), number({exponent, 1})}); }

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  ExprPtr whole() {
    ExprPtr e = fraction();
    skip();
    if (at_ != text_.size()) throw NoExpression();
    return e;
  }

 private:
  void skip() {
    while (at_ < text_.size() && (std::isspace(static_cast<unsigned char>(text_[at_])) || text_[at_] == '~')) ++at_;
  }
  char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(std::string_view token) {
    skip();
    if (text_.substr(at_, token.size()) != token) return false;
    // A command ends where its letters end: \in is not the start of \infty.
    if (token.size() > 1 && token[0] == '\\' && at_ + token.size() < text_.size() &&
        is_letter(token.back()) && is_letter(text_[at_ + token.size()]))
      return false;
    at_ += token.size();
    return true;
  }
  void require(std::string_view token) {
    if (!take(token)) throw NoExpression();
  }
  // The last character before `at` that is no blank.
  char last_before(size_t at) const {
    while (at > 0 && std::isspace(static_cast<unsigned char>(text_[at - 1]))) --at;
    return at > 0 ? text_[at - 1] : '\0';
  }
  bool at_command(std::initializer_list<std::string_view> commands) {
    const size_t before = at_;
    const bool here = std::ranges::any_of(commands, [this](std::string_view command) { return take(command); });
    at_ = before;
    return here;
  }

  struct Depth {
    explicit Depth(int& depth) : depth_(depth) {
      if (++depth_ > kMaxDepth) throw NoExpression();
    }
    ~Depth() { --depth_; }
    int& depth_;
  };

  // What TeX writes as {a \over b} or {n \choose k}.
  ExprPtr fraction() {
    ExprPtr top = sum();
    const bool divides = take("\\over");
    if (!divides && !take("\\choose")) return top;
    const ExprPtr bottom = sum();
    return divides ? node(ExprKind::kMultiply, {top, inverse(bottom)}) : node(ExprKind::kFunction, {top, bottom}, "binom");
  }

  ExprPtr sum() {
    Depth depth(depth_);
    std::vector<ExprPtr> terms;
    bool negative = false;
    while (peek() == '+' || peek() == '-') negative ^= text_[at_++] == '-';
    for (;;) {
      ExprPtr term = product();
      terms.push_back(negative ? negated(term) : term);
      negative = peek() == '-';
      if (peek() != '+' && peek() != '-') break;
      ++at_;
    }
    return terms.size() == 1 ? terms[0] : node(ExprKind::kAdd, std::move(terms));
  }

  bool starts_factor() {
    const char c = peek();
    if (c == '\\')
      return !at_command({"\\cdot", "\\times", "\\div", "\\right", "\\rfloor", "\\rceil", "\\over", "\\choose", "\\ldots"});
    return std::isalnum(static_cast<unsigned char>(c)) || c == '(' || c == '{' || c == '[' || c == '.' || (c == '|' && bars_ == 0);
  }

  ExprPtr product() {
    ExprPtr first = signed_factor();
    // 1 \frac{1}{2} and 1 1/2 are mixed numbers.
    if (first->kind == ExprKind::kNumber && first->decimals < 0) {
      const size_t before = at_;
      if (at_command({"\\frac"}) || is_digit(peek())) {
        ExprPtr rest = signed_factor();
        if (rest->kind == ExprKind::kNumber && take("/")) rest = node(ExprKind::kMultiply, {rest, inverse(signed_factor())});
        const auto fraction = exact_value(*rest);
        if (fraction && fraction->num > 0 && fraction->num < fraction->den)
          first = node(ExprKind::kAdd, {first, rest});
        else
          at_ = before;
      }
    }
    std::vector<ExprPtr> factors = {first};
    for (;;) {
      if (take("\\cdot") || take("\\times") || take("*"))
        factors.push_back(signed_factor());
      else if (take("\\div") || take("/"))
        factors.push_back(inverse(signed_factor()));
      else if (starts_factor()) {
        if (at_ > 0 && is_digit(last_before(at_)) && is_digit(peek()))
          throw NoExpression();  // `2 3` is no product
        factors.push_back(postfixed());
      } else
        break;
    }
    return factors.size() == 1 ? factors[0] : node(ExprKind::kMultiply, std::move(factors));
  }

  ExprPtr signed_factor() {
    if (take("-")) {
      Depth depth(depth_);
      return negated(signed_factor());
    }
    take("+");
    return postfixed();
  }

  ExprPtr postfixed() {
    Depth depth(depth_);
    ExprPtr e = atom();
    for (;;) {
      if (take("**") || take("^"))
        e = node(ExprKind::kPower, {e, exponent()});
      else if (peek() == '!' && take("!")) {
        if (peek() == '!') throw NoExpression();  // a double factorial
        e = node(ExprKind::kFunction, {e}, "factorial");
      } else if (peek() == kDegree)
        e = in_degrees(e);
      else
        return e;
    }
  }

  // An angle is in radians within a function, and its number by itself.
  ExprPtr in_degrees(ExprPtr e) {
    if (peek() != kDegree) return e;
    ++at_;
    return in_trigonometry_ ? node(ExprKind::kMultiply, {e, node(ExprKind::kConstant, {}, "pi"), inverse(number({180, 1}))}) : e;
  }

  // x^12 in LaTeX is x^1 followed by 2, but people write it for x^{12}.
  ExprPtr exponent() {
    if (take("{")) return closed("}");
    if (take("-")) return negated(exponent());
    ExprPtr e = atom();
    if (!take("^")) return e;
    const ExprPtr above = exponent();  // 10^10^10
    return node(ExprKind::kPower, {e, above});
  }

  ExprPtr closed(std::string_view end) {
    const int bars = std::exchange(bars_, 0);
    ExprPtr e = fraction();
    bars_ = bars;
    require(end);
    return e;
  }

  // The argument of \frac or \sqrt: a group, or one digit, letter or command.
  ExprPtr argument() {
    if (take("{")) return closed("}");
    const char c = peek();
    if (is_digit(c)) {
      ++at_;
      return number({c - '0', 1});
    }
    return atom();
  }

  ExprPtr numeral() {
    std::string digits;
    int decimals = -1;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (is_digit(c)) {
        digits += c;
        if (decimals >= 0) ++decimals;
      } else if (c == '.' && decimals < 0) {
        decimals = 0;
      } else {
        break;
      }
      ++at_;
    }
    if (decimals >= 0)
      if (const std::string period = repeated(digits, decimals); !period.empty()) return repeating(digits, decimals, period);
    ExprPtr e = decimal(digits, decimals);
    const std::optional<int64_t> exponent = scientific(digits, decimals);
    return exponent ? node(ExprKind::kMultiply, {e, power_of_ten(*exponent)}) : e;
  }

  // The digits without a point, of which `decimals` stand behind it.
  static ExprPtr decimal(const std::string& digits, int decimals) {
    if (digits.empty()) throw NoExpression();
    auto e = std::make_shared<Expr>();
    e->decimals = decimals;
    e->approximate = std::strtold((digits + "e-" + std::to_string(std::max(decimals, 0))).c_str(), nullptr);
    if (digits.size() <= 35 && decimals <= 34) {
      __int128 num = 0, den = 1;
      for (char c : digits) num = num * 10 + (c - '0');
      for (int i = 0; i < decimals; ++i) den *= 10;
      e->number = Rational::make(num, den);
    }
    if (!e->number) e->name = digits;
    return e;
  }

  // The period behind the digits of a decimal: 0.1\overline{6}, 0.1\dot{6}, 0.(3), and 0.333... where three digits are alike.
  std::string repeated(const std::string& digits, int decimals) {
    const size_t before = at_;
    for (const std::string_view mark : {"\\overline", "\\bar", "\\dot", "("}) {
      if (!text_.substr(at_).starts_with(mark)) continue;
      at_ += mark.size();
      const bool braced = mark != "(" && take("{");
      std::string period;
      while (at_ < text_.size() && is_digit(text_[at_])) {
        period += text_[at_++];
        if (mark != "(" && !braced) break;
      }
      if (mark == "\\dot") period += to_the_last_dot();
      if (!period.empty() && (mark == "(" ? take(")") : !braced || take("}"))) return period;
      at_ = before;
      return "";
    }
    if (decimals < 3 || !(take("...") || take("\\ldots"))) return "";
    for (size_t length = 1; length <= 6; ++length) {  // 0.333... and 0.1212...
      const std::string period = digits.substr(digits.size() - std::min(length, digits.size()));
      const std::string shown = length == 1 ? period + period + period : period + period;
      if (shown.size() <= static_cast<size_t>(decimals) && digits.ends_with(shown)) return period;
    }
    at_ = before;
    return "";
  }
  // 0.\dot{1}4285\dot{7}: behind the first dot, the digits up to the second.
  std::string to_the_last_dot() {
    const size_t before = at_;
    const bool braced = take("}");
    std::string digits;
    while (at_ < text_.size() && is_digit(text_[at_])) digits += text_[at_++];
    if (!take("\\dot")) return at_ = before, "";
    const bool is_group = take("{");
    if (at_ >= text_.size() || !is_digit(text_[at_])) return at_ = before, "";
    digits += text_[at_++];
    if (is_group && !braced && !take("}")) return at_ = before, "";
    return digits;
  }
  static ExprPtr repeating(const std::string& digits, int decimals, const std::string& period) {
    if (digits.size() > 15 || period.size() > 15) throw NoExpression();
    int64_t nines = 1, shift = 1;
    for (size_t i = 0; i < period.size(); ++i) nines *= 10;
    for (int i = 0; i < decimals; ++i) shift *= 10;
    const auto rest = Rational::make(std::stoll(period), static_cast<__int128>(nines - 1) * shift);
    if (!rest) throw NoExpression();
    auto sum = std::make_shared<Expr>(*node(ExprKind::kAdd, {digits.empty() ? number({0, 1}) : decimal(digits, decimals), number(*rest)}));
    sum->decimals = 0;  // the same digits without their bar are not it
    return sum;
  }

  // The exponent of 1.5e3, 1e-7 and 2E10. 2e-3 is twice Euler's number less 3.
  std::optional<int64_t> scientific(const std::string& digits, int decimals) {
    if (at_ + 1 >= text_.size() || (text_[at_] != 'e' && text_[at_] != 'E')) return std::nullopt;
    size_t end = at_ + 1;
    const bool is_signed = text_[end] == '-' || text_[end] == '+';
    const bool is_negative = text_[end] == '-';
    end += is_signed;
    const size_t begin = end;
    while (end < text_.size() && is_digit(text_[end])) ++end;
    const bool is_letter_next = end < text_.size() && (is_letter(text_[end]) || text_[end] == '^');
    if (end == begin || end - begin > 9 || is_letter_next) return std::nullopt;
    if (is_signed && digits != "1" && decimals < 0 && end - begin < 2) return std::nullopt;
    const int64_t exponent = std::stoll(std::string(text_.substr(begin, end - begin)));
    at_ = end;
    return is_negative ? -exponent : exponent;
  }

  ExprPtr function(const std::string& written) {
    const std::string name = written == "lg" ? "log" : written;
    ExprPtr power, base = written == "lg" ? number({10, 1}) : nullptr;
    if (take("_")) base = argument();
    if (take("^")) power = exponent();
    in_trigonometry_ += is_trigonometric(name);
    ExprPtr arg = peek() == '(' || peek() == '{' ? in_degrees(atom()) : postfixed_chain();
    in_trigonometry_ -= is_trigonometric(name);
    ExprPtr e = base ? node(ExprKind::kFunction, {arg, base}, name) : node(ExprKind::kFunction, {arg}, name);
    if (!power) return e;
    const auto exact = exact_value(*power);
    if (exact && *exact == Rational{-1, 1} && is_one_of(name, {"sin", "cos", "tan"})) return node(ExprKind::kFunction, {arg}, "arc" + name);
    return node(ExprKind::kPower, {e, power});
  }

  // sin 2x takes the whole product of plain factors.
  ExprPtr postfixed_chain() {
    std::vector<ExprPtr> factors = {signed_factor()};
    while (starts_factor() && peek() != '(' && !at_command({"\\sin", "\\cos", "\\tan", "\\ln", "\\log"})) factors.push_back(postfixed());
    return factors.size() == 1 ? factors[0] : node(ExprKind::kMultiply, std::move(factors));
  }

  ExprPtr variable(std::string name) {
    if (at_ < text_.size() && text_[at_] == '_') {
      ++at_;
      if (take("{")) {
        const size_t end = text_.find('}', at_);
        if (end == std::string_view::npos) throw NoExpression();
        name += "_" + std::string(text_.substr(at_, end - at_));
        at_ = end + 1;
      } else if (at_ < text_.size() && std::isalnum(static_cast<unsigned char>(text_[at_]))) {
        name += std::string("_") + text_[at_++];
      } else {
        throw NoExpression();
      }
    }
    return node(ExprKind::kVariable, {}, std::move(name));
  }

  ExprPtr command() {
    size_t end = at_ + 1;
    while (end < text_.size() && is_letter(text_[end])) ++end;
    const std::string name(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end;
    const bool divides = is_one_of(name, {"frac", "dfrac", "tfrac", "cfrac"});
    if (divides || is_one_of(name, {"binom", "dbinom", "tbinom"})) {
      ExprPtr top = argument(), bottom = argument();
      return divides ? node(ExprKind::kMultiply, {top, inverse(bottom)}) : node(ExprKind::kFunction, {top, bottom}, "binom");
    }
    if (name == "sqrt") {
      ExprPtr index = take("[") ? closed("]") : nullptr;
      ExprPtr arg = argument();
      return index ? node(ExprKind::kFunction, {arg, index}, "root") : node(ExprKind::kFunction, {arg}, "sqrt");
    }
    if (name == "pi") return node(ExprKind::kConstant, {}, "pi");
    if (name == "infty") return node(ExprKind::kConstant, {}, "infinity");
    if (name == "lfloor" || name == "lceil") {
      ExprPtr arg = closed(name == "lfloor" ? "\\rfloor" : "\\rceil");
      return node(ExprKind::kFunction, {arg}, name == "lfloor" ? "floor" : "ceil");
    }
    if (is_function(name)) return function(name);
    if (is_one_of(name, {"alpha", "beta", "gamma", "delta", "theta", "lambda", "mu", "omega", "phi", "varphi", "rho", "sigma", "tau",
                      "epsilon", "ell"}))
      return variable(name);
    throw NoExpression();
  }

  // Letters stand for a product of variables, unless they spell a name; longer words are prose.
  ExprPtr word() {
    size_t end = at_;
    while (end < text_.size() && is_letter(text_[end])) ++end;
    const std::string name(text_.substr(at_, end - at_));
    if (name == "sqrt" || name == "abs") {
      at_ = end;
      require("(");
      return node(ExprKind::kFunction, {closed(")")}, name);
    }
    if (name == "pi" || name == "infinity" || name == "inf") {
      at_ = end;
      return node(ExprKind::kConstant, {}, name == "pi" ? "pi" : "infinity");
    }
    if (is_function(name)) {
      at_ = end;
      return function(name);
    }
    if (name.size() > 3) throw NoExpression();
    const char letter = text_[at_++];
    if (letter == 'e' || letter == 'i') {
      if (at_ >= text_.size() || text_[at_] != '_') return node(ExprKind::kConstant, {}, std::string(1, letter));
    }
    return variable(std::string(1, letter));
  }

  ExprPtr atom() {
    Depth depth(depth_);
    const char c = peek();
    if (is_digit(c) || c == '.') return numeral();
    if (take("(")) return closed(")");
    if (take("{")) return closed("}");
    if (take("[")) return closed("]");
    if (c == '|') {
      ++at_;
      ++bars_;
      ExprPtr e = sum();
      --bars_;
      require("|");
      return node(ExprKind::kFunction, {e}, "abs");
    }
    if (c == '\\') return command();
    if (is_letter(c)) return word();
    throw NoExpression();
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  int bars_ = 0;
  int in_trigonometry_ = 0;
};

}  // namespace

ExprPtr parse_expression(std::string_view text) {
  const bool is_numeral = text.size() <= kMaxNumeral && text.find_first_not_of("-0123456789.") == std::string_view::npos;
  if (text.size() > kMaxLength && !is_numeral) return nullptr;
  try {
    return Parser(text).whole();
  } catch (const NoExpression&) {
    return nullptr;
  }
}

}  // namespace tandem::reward
