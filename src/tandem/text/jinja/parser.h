// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tokens to a tree. Expressions here; statements, which hold them, in statement_parser.h.

#include <string>
#include <string_view>
#include <vector>

#include "tandem/text/jinja/lexer.h"
#include "tandem/text/jinja/syntax.h"

namespace tandem::text::jinja {

/// Ownership  keeps the tokens.
/// Errors     UserError naming file, line and construct, for what is no expression and for one nested too deep.
class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, std::string where) : tokens_(std::move(tokens)), where_(std::move(where)) {}

  ExpressionPtr expression();
  /// Expressions with commas between them are a tuple.
  ExpressionPtr tuple(bool with_condition = true);
  /// `name(arguments) | name ...`, applied to `value`, which is null at the start of a filter block.
  ExpressionPtr filters(ExpressionPtr value);
  /// Reads `(a, b=1)`.
  std::vector<Parameter> signature();

  const Token& token() const { return tokens_[at_]; }
  void skip() { at_ += at_ + 1 < tokens_.size() ? 1 : 0; }
  bool is(TokenKind kind, std::string_view text) const { return token().kind == kind && token().text == text; }
  bool is_operator(std::string_view text) const { return is(TokenKind::kOperator, text); }
  bool is_name(std::string_view text) const { return is(TokenKind::kName, text); }
  /// Passes it if it is there.
  bool take(std::string_view operator_or_name);
  void expect(std::string_view operator_or_name);
  void expect(TokenKind kind);
  std::string name();
  [[noreturn]] void fail(const std::string& what, const std::string& remedy) const;
  [[noreturn]] void fail_here(const std::string& expected) const;

  /// Counts how deep the parser is within itself.
  class Nested {
   public:
    explicit Nested(ExpressionParser& parser);
    ~Nested() { --parser_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    ExpressionParser& parser_;
  };

 private:
  ExpressionPtr make(ExpressionKind kind, std::vector<ExpressionPtr> parts, std::string name = "");
  template <class... Parts>
  ExpressionPtr node(ExpressionKind kind, std::string name, Parts... parts);
  ExpressionPtr constant(Value value);
  using Level = ExpressionPtr (ExpressionParser::*)();
  ExpressionPtr left_to_right(Level next, std::initializer_list<std::string_view> operators);
  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary();
  ExpressionPtr signed_operand(bool with_filters);
  ExpressionPtr primary();
  template <class Item>
  void separated_until(std::string_view close, Item item);
  ExpressionPtr dictionary();
  ExpressionPtr postfix(ExpressionPtr value);
  ExpressionPtr attribute(ExpressionPtr value);
  ExpressionPtr subscript(ExpressionPtr value);
  ExpressionPtr test(ExpressionPtr value);
  void arguments(Expression& call);
  ExpressionPtr number();
  bool ends_tuple() const;

  std::vector<Token> tokens_;
  std::string where_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace tandem::text::jinja
