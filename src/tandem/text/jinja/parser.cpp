// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/jinja/parser.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>

#include "tandem/base/error.h"

namespace tandem::text::jinja {
namespace {

constexpr int kMaxDepth = 100;   // of the parser within itself
constexpr int kMaxLevels = 250;  // of one expression's tree

std::string described(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd: return "the end of the template";
    case TokenKind::kPrintEnd: return "`}}`";
    case TokenKind::kBlockEnd: return "`%}`";
    case TokenKind::kString: return "the text '" + token.text.substr(0, 30) + "'";
    default: return "`" + token.text.substr(0, 30) + "`";
  }
}

}  // namespace

ExpressionParser::Nested::Nested(ExpressionParser& parser) : parser_(parser) {
  if (parser.depth_ == kMaxDepth) parser.fail("is nested too deep", "at most " + std::to_string(kMaxDepth) + " levels");
  ++parser.depth_;
}

void ExpressionParser::fail(const std::string& what, const std::string& remedy) const {
  throw UserError(where_ + ":" + std::to_string(token().line), what, remedy);
}

void ExpressionParser::fail_here(const std::string& expected) const {
  fail(described(token()) + " is not right here", "expected " + expected);
}

bool ExpressionParser::take(std::string_view text) {
  if (!is_operator(text) && !is_name(text)) return false;
  skip();
  return true;
}

void ExpressionParser::expect(std::string_view text) {
  if (!take(text)) fail_here("`" + std::string(text) + "`");
}

void ExpressionParser::expect(TokenKind kind) {
  if (token().kind != kind) fail_here(kind == TokenKind::kBlockEnd ? "`%}`" : "`}}`");
  skip();
}

std::string ExpressionParser::name() {
  if (token().kind != TokenKind::kName) fail_here("a name");
  std::string text = token().text;
  skip();
  return text;
}

ExpressionPtr ExpressionParser::make(ExpressionKind kind, std::vector<ExpressionPtr> parts, std::string name) {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = token().line;
  made->name = std::move(name);
  made->parts = std::move(parts);
  for (const ExpressionPtr& part : made->parts)
    if (part) made->levels = std::max(made->levels, part->levels + 1);
  if (made->levels > kMaxLevels) fail("an expression is nested too deep", "at most " + std::to_string(kMaxLevels) + " levels");
  return made;
}

template <class... Parts>
ExpressionPtr ExpressionParser::node(ExpressionKind kind, std::string name, Parts... parts) {
  std::vector<ExpressionPtr> list;
  (list.push_back(std::move(parts)), ...);
  return make(kind, std::move(list), std::move(name));
}

// Passes `close`. A comma stands between two items, and may stand behind the last.
template <class Item>
void ExpressionParser::separated_until(std::string_view close, Item item) {
  while (!is_operator(close)) {
    item();
    if (!is_operator(close)) expect(",");
  }
  skip();
}

ExpressionPtr ExpressionParser::constant(Value value) {
  auto made = make(ExpressionKind::kConstant, {});
  made->constant = std::move(value);
  return made;
}

ExpressionPtr ExpressionParser::expression() {
  const Nested nested(*this);
  ExpressionPtr value = either();
  while (take("if")) {
    ExpressionPtr condition = either();
    ExpressionPtr other = take("else") ? expression() : nullptr;
    value = node(ExpressionKind::kCondition, "", std::move(value), std::move(condition), std::move(other));
  }
  return value;
}

bool ExpressionParser::ends_tuple() const {
  return token().kind == TokenKind::kPrintEnd || token().kind == TokenKind::kBlockEnd || token().kind == TokenKind::kEnd ||
         is_operator(")") || is_name("recursive");
}

ExpressionPtr ExpressionParser::tuple(bool with_condition) {
  std::vector<ExpressionPtr> parts;
  bool comma = false;
  while (!ends_tuple()) {
    parts.push_back(with_condition ? expression() : either());
    if (!is_operator(",")) break;
    skip();
    comma = true;
  }
  if (parts.empty()) fail_here("an expression");
  if (!comma) return std::move(parts[0]);
  return make(ExpressionKind::kTuple, std::move(parts));
}

ExpressionPtr ExpressionParser::left_to_right(Level next, std::initializer_list<std::string_view> operators) {
  ExpressionPtr left = (this->*next)();
  while (token().kind == TokenKind::kOperator && std::find(operators.begin(), operators.end(), token().text) != operators.end()) {
    std::string sign = token().text;
    skip();
    ExpressionPtr right = (this->*next)();
    left = node(ExpressionKind::kBinary, std::move(sign), std::move(left), std::move(right));
  }
  return left;
}

ExpressionPtr ExpressionParser::either() {
  ExpressionPtr left = both();
  while (take("or")) left = node(ExpressionKind::kOr, "", std::move(left), both());
  return left;
}

ExpressionPtr ExpressionParser::both() {
  ExpressionPtr left = negation();
  while (take("and")) left = node(ExpressionKind::kAnd, "", std::move(left), negation());
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  const Nested nested(*this);
  if (take("not")) return node(ExpressionKind::kNot, "", negation());
  return comparison();
}

ExpressionPtr ExpressionParser::comparison() {
  std::vector<ExpressionPtr> parts;
  parts.push_back(sum());
  std::vector<std::string> operators;
  constexpr std::string_view kSigns[] = {"==", "!=", "<", "<=", ">", ">="};
  while (true) {
    if (token().kind == TokenKind::kOperator && std::find(std::begin(kSigns), std::end(kSigns), token().text) != std::end(kSigns)) {
      operators.push_back(token().text);
      skip();
    } else if (is_name("in")) {
      operators.emplace_back("in");
      skip();
    } else if (is_name("not") && tokens_[at_ + 1].kind == TokenKind::kName && tokens_[at_ + 1].text == "in") {
      operators.emplace_back("not in");
      skip();
      skip();
    } else {
      break;
    }
    parts.push_back(sum());
  }
  if (operators.empty()) return std::move(parts[0]);
  ExpressionPtr made = make(ExpressionKind::kCompare, std::move(parts));
  made->operators = std::move(operators);
  return made;
}

ExpressionPtr ExpressionParser::sum() { return left_to_right(&ExpressionParser::concatenation, {"+", "-"}); }
ExpressionPtr ExpressionParser::product() { return left_to_right(&ExpressionParser::power, {"*", "/", "//", "%"}); }
ExpressionPtr ExpressionParser::power() { return left_to_right(&ExpressionParser::unary, {"**"}); }

ExpressionPtr ExpressionParser::concatenation() {
  std::vector<ExpressionPtr> parts;
  parts.push_back(product());
  while (is_operator("~")) {
    skip();
    parts.push_back(product());
  }
  if (parts.size() == 1) return std::move(parts[0]);
  return make(ExpressionKind::kConcat, std::move(parts));
}

ExpressionPtr ExpressionParser::unary() { return signed_operand(true); }

// A sign binds closer than filters: -1|abs is (-1)|abs.
ExpressionPtr ExpressionParser::signed_operand(bool with_filters) {
  const Nested nested(*this);
  ExpressionPtr value;
  if (take("-"))
    value = node(ExpressionKind::kNegative, "", signed_operand(false));
  else if (take("+"))
    value = node(ExpressionKind::kPositive, "", signed_operand(false));
  else
    value = primary();
  value = postfix(std::move(value));
  while (with_filters) {
    if (is_operator("|"))
      value = filters(std::move(value));
    else if (is_name("is"))
      value = test(std::move(value));
    else if (is_operator("("))
      value = postfix(std::move(value));
    else
      break;
  }
  return value;
}

ExpressionPtr ExpressionParser::number() {
  const Token number = token();
  const bool whole = number.kind == TokenKind::kInteger;
  if (!whole) {
    skip();
    return constant(std::strtod(number.text.c_str(), nullptr));
  }
  const std::string_view text = number.text;
  const bool based = text.size() > 2 && text[0] == '0' && !(text[1] >= '0' && text[1] <= '9');
  const int base = !based ? 10 : text[1] == 'x' || text[1] == 'X' ? 16 : text[1] == 'o' || text[1] == 'O' ? 8 : 2;
  const std::string_view digits = text.substr(based ? 2 : 0);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc() || end != digits.data() + digits.size())
    fail(described(number) + " is no number of 64 bits", "expected a smaller one");
  skip();
  return constant(value);
}

ExpressionPtr ExpressionParser::primary() {
  const Nested nested(*this);
  switch (token().kind) {
    case TokenKind::kInteger:
    case TokenKind::kFloat: return number();
    case TokenKind::kString: {
      std::string text;
      for (; token().kind == TokenKind::kString; skip()) text += token().text;
      return constant(std::move(text));
    }
    case TokenKind::kName: {
      std::string word = name();
      if (word == "true" || word == "True") return constant(true);
      if (word == "false" || word == "False") return constant(false);
      if (word == "none" || word == "None") return constant(None{});
      return node(ExpressionKind::kName, std::move(word));
    }
    default: break;
  }
  if (take("(")) {
    if (take(")")) return make(ExpressionKind::kTuple, {});
    ExpressionPtr inside = tuple();
    expect(")");
    return inside;
  }
  if (take("[")) {
    std::vector<ExpressionPtr> parts;
    separated_until("]", [&] { parts.push_back(expression()); });
    return make(ExpressionKind::kList, std::move(parts));
  }
  if (take("{")) return dictionary();
  fail_here("an expression");
}

ExpressionPtr ExpressionParser::dictionary() {
  std::vector<ExpressionPtr> parts;
  separated_until("}", [&] {
    parts.push_back(expression());
    expect(":");
    parts.push_back(expression());
  });
  return make(ExpressionKind::kDict, std::move(parts));
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr value) {
  while (true) {
    if (take(".")) {
      value = attribute(std::move(value));
    } else if (take("[")) {
      value = subscript(std::move(value));
    } else if (is_operator("(")) {
      value = node(ExpressionKind::kCall, "", std::move(value));
      arguments(*value);
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::attribute(ExpressionPtr value) {
  if (token().kind == TokenKind::kInteger) return node(ExpressionKind::kItem, "", std::move(value), number());
  std::string word = name();
  return node(ExpressionKind::kAttribute, std::move(word), std::move(value));
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr value) {
  ExpressionPtr bounds[3];
  int colons = 0;
  for (; !is_operator("]"); ) {
    if (is_operator(":")) {
      if (++colons > 2) fail_here("`]`");
      skip();
    } else {
      if (bounds[colons]) fail_here("`]`, for a key of one part");
      bounds[colons] = expression();
    }
  }
  if (colons == 0 && !bounds[0]) fail_here("a key");
  skip();
  if (colons == 0) return node(ExpressionKind::kItem, "", std::move(value), std::move(bounds[0]));
  return node(ExpressionKind::kSlice, "", std::move(value), std::move(bounds[0]), std::move(bounds[1]), std::move(bounds[2]));
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr value) {
  do {
    if (value || is_operator("|")) expect("|");
    std::string word = name();
    while (take(".")) word += "." + name();
    value = node(ExpressionKind::kFilter, std::move(word), std::move(value));
    if (is_operator("(")) arguments(*value);
  } while (is_operator("|"));
  return value;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr value) {
  skip();
  const bool negated = take("not");
  std::string word = name();
  ExpressionPtr made = node(ExpressionKind::kTest, std::move(word), std::move(value));
  const TokenKind kind = token().kind;
  const bool argument_follows =
      kind == TokenKind::kInteger || kind == TokenKind::kFloat || kind == TokenKind::kString || is_operator("[") || is_operator("{") ||
      (kind == TokenKind::kName && !is_name("else") && !is_name("or") && !is_name("and") && !is_name("if") && !is_name("is") &&
       !is_name("in") && !is_name("not") && !is_name("recursive"));
  if (is_operator("("))
    arguments(*made);
  else if (argument_follows)
    made->parts.push_back(postfix(primary()));
  if (!negated) return made;
  return node(ExpressionKind::kNot, "", std::move(made));
}

void ExpressionParser::arguments(Expression& call) {
  expect("(");
  separated_until(")", [&] {
    if (is_operator("*") || is_operator("**")) fail("arguments with `*` are not supported", "expected each argument by itself");
    const bool by_name =
        token().kind == TokenKind::kName && tokens_[at_ + 1].kind == TokenKind::kOperator && tokens_[at_ + 1].text == "=";
    if (by_name) {
      std::string word = name();
      skip();
      call.named.emplace_back(std::move(word), expression());
      call.levels = std::max(call.levels, call.named.back().second->levels + 1);
    } else {
      if (!call.named.empty()) fail("an argument without a name follows one with a name", "expected those without names first");
      call.parts.push_back(expression());
      call.levels = std::max(call.levels, call.parts.back()->levels + 1);
    }
  });
}

std::vector<Parameter> ExpressionParser::signature() {
  std::vector<Parameter> parameters;
  expect("(");
  separated_until(")", [&] {
    Parameter one;
    one.name = name();
    if (take("=")) one.value = expression();
    else if (!parameters.empty() && parameters.back().value)
      fail("a parameter without a default follows one with a default", "expected it before");
    parameters.push_back(std::move(one));
  });
  return parameters;
}

}  // namespace tandem::text::jinja
