// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/jinja/statement_parser.h"

#include <algorithm>
#include <utility>

#include "tandem/base/options.h"
#include "tandem/text/jinja/parser.h"

namespace tandem::text::jinja {
namespace {

using StatementPtr = std::unique_ptr<Statement>;

class StatementParser {
 public:
  StatementParser(std::string_view source, const std::string& where) : in_(tokenize(source, where), where) {}

  Block run() {
    Block all = block({});
    if (in_.token().kind != TokenKind::kEnd)
      in_.fail("`" + in_.token().text + "` ends nothing", "expected a statement before it that it could end");
    return all;
  }

 private:
  struct Keyword {
    std::string_view name;
    StatementPtr (StatementParser::*read)();
  };

  StatementPtr make(StatementKind kind) {
    auto made = std::make_unique<Statement>();
    made->kind = kind;
    made->line = in_.token().line;
    return made;
  }

  // Statements up to a tag that begins with one of `ends`, whose name is the next token then.
  Block block(std::initializer_list<std::string_view> ends) {
    const ExpressionParser::Nested nested(in_);
    Block all;
    while (in_.token().kind != TokenKind::kEnd) {
      const TokenKind kind = in_.token().kind;
      if (kind == TokenKind::kData) {
        all.push_back(make(StatementKind::kData));
        all.back()->text = in_.token().text;
        in_.skip();
      } else if (kind == TokenKind::kPrintBegin) {
        in_.skip();
        all.push_back(make(StatementKind::kPrint));
        all.back()->value = in_.tuple();
        in_.expect(TokenKind::kPrintEnd);
      } else {
        in_.skip();
        if (in_.token().kind != TokenKind::kName) in_.fail_here("the name of a statement");
        const std::string& name = in_.token().text;
        if (std::find(ends.begin(), ends.end(), name) != ends.end()) return all;
        if (name.starts_with("end") || name == "else" || name == "elif") return all;  // whoever asked finds it wrong
        all.push_back(statement());
      }
    }
    return all;
  }

  StatementPtr statement() {
    static constexpr Keyword kKeywords[] = {
        {"if", &StatementParser::read_if},
        {"for", &StatementParser::read_for},
        {"set", &StatementParser::read_set},
        {"macro", &StatementParser::read_macro},
        {"call", &StatementParser::read_call},
        {"filter", &StatementParser::read_filter},
        {"with", &StatementParser::read_with},
        {"generation", &StatementParser::read_generation},
        {"break", &StatementParser::read_break},
        {"continue", &StatementParser::read_continue},
        {"print", &StatementParser::read_print},
    };
    const std::string name = in_.token().text;
    std::vector<std::string> known;
    for (const Keyword& keyword : kKeywords) {
      if (keyword.name == name) {
        const int line = in_.token().line;
        in_.skip();
        StatementPtr made = (this->*keyword.read)();
        made->line = line;
        return made;
      }
      known.emplace_back(keyword.name);
    }
    in_.fail("the statement `" + name + "` is not supported", "the nearest is `" + nearest_name(name, known) + "`");
  }

  // The end of the tag that is being read, the body of its statement, and the tag that ends it.
  Block body_until(std::string_view end) {
    in_.expect(TokenKind::kBlockEnd);
    Block body = block({end});
    finish(end);
    return body;
  }
  void finish(std::string_view end) {
    if (!in_.is_name(end)) {
      const bool at_end = in_.token().kind == TokenKind::kEnd;
      in_.fail(at_end ? "the template ends early" : "`" + in_.token().text + "` is not right here",
               "expected {% " + std::string(end) + " %}");
    }
    in_.skip();
    in_.expect(TokenKind::kBlockEnd);
  }

  Target target(bool with_field) {
    Target made;
    const bool bracket = in_.take("(");
    do {
      if (!made.names.empty() && in_.token().kind != TokenKind::kName) break;
      made.names.push_back(in_.name());
      if (with_field && made.names.size() == 1 && in_.take(".")) {
        made.field = in_.name();
        return made;
      }
      if (!in_.is_operator(",")) break;
      made.unpacks = true;
      in_.skip();
    } while (true);
    if (bracket) in_.expect(")");
    return made;
  }

  StatementPtr read_if() {
    auto made = make(StatementKind::kIf);
    bool more = true, last = false;
    while (more) {
      Branch branch;
      if (!last) branch.test = in_.tuple(false);
      in_.expect(TokenKind::kBlockEnd);
      branch.body = last ? block({"endif"}) : block({"elif", "else", "endif"});
      made->branches.push_back(std::move(branch));
      more = !last && (in_.is_name("elif") || in_.is_name("else"));
      last = in_.is_name("else");
      if (more) in_.skip();
    }
    finish("endif");
    return made;
  }

  StatementPtr read_for() {
    auto made = make(StatementKind::kFor);
    made->target = target(false);
    in_.expect("in");
    made->value = in_.tuple(false);
    if (in_.take("if")) made->condition = in_.expression();
    made->recursive = in_.take("recursive");
    in_.expect(TokenKind::kBlockEnd);
    ++loops_;
    made->body = block({"else", "endfor"});
    --loops_;
    if (in_.take("else")) {
      in_.expect(TokenKind::kBlockEnd);
      made->other = block({"endfor"});
    }
    finish("endfor");
    return made;
  }

  StatementPtr read_set() {
    auto made = make(StatementKind::kSet);
    made->target = target(true);
    if (in_.take("=")) {
      made->value = in_.tuple();
      in_.expect(TokenKind::kBlockEnd);
      return made;
    }
    made->kind = StatementKind::kCapture;
    if (made->target.unpacks) in_.fail_here("`=`");
    if (in_.is_operator("|")) made->value = in_.filters(nullptr);
    made->body = body_until("endset");
    return made;
  }

  // The body of a macro is no part of the loop around it.
  Block separate_body(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Block body = body_until(end);
    loops_ = loops;
    return body;
  }

  StatementPtr read_macro() {
    auto made = make(StatementKind::kMacro);
    made->text = in_.name();
    made->parameters = in_.signature();
    made->body = separate_body("endmacro");
    return made;
  }

  StatementPtr read_call() {
    auto made = make(StatementKind::kCall);
    if (in_.is_operator("(")) made->parameters = in_.signature();
    made->value = in_.expression();
    if (made->value->kind != ExpressionKind::kCall) in_.fail("`call` without a call", "expected {% call name(...) %}");
    made->body = separate_body("endcall");
    return made;
  }

  StatementPtr read_filter() {
    auto made = make(StatementKind::kFilter);
    made->value = in_.filters(nullptr);
    made->body = separate_body("endfilter");
    return made;
  }

  StatementPtr read_with() {
    auto made = make(StatementKind::kWith);
    while (in_.token().kind != TokenKind::kBlockEnd) {
      Parameter one;
      one.name = in_.name();
      in_.expect("=");
      one.value = in_.expression();
      made->parameters.push_back(std::move(one));
      if (in_.token().kind != TokenKind::kBlockEnd) in_.expect(",");
    }
    made->body = body_until("endwith");
    return made;
  }

  // What the model itself says, marked by templates for training; it renders as if the marks were not there.
  StatementPtr read_generation() {
    auto made = make(StatementKind::kWith);
    made->body = separate_body("endgeneration");
    return made;
  }

  StatementPtr jump(StatementKind kind) {
    if (loops_ == 0) in_.fail("`break` or `continue` stands outside of a loop", "expected it within {% for %}");
    auto made = make(kind);
    in_.expect(TokenKind::kBlockEnd);
    return made;
  }
  StatementPtr read_break() { return jump(StatementKind::kBreak); }
  StatementPtr read_continue() { return jump(StatementKind::kContinue); }

  StatementPtr read_print() {
    auto made = make(StatementKind::kPrint);
    made->value = in_.tuple();
    if (made->value->kind == ExpressionKind::kTuple) made->value->kind = ExpressionKind::kConcat;  // one after the other
    in_.expect(TokenKind::kBlockEnd);
    return made;
  }

  ExpressionParser in_;
  int loops_ = 0;
};

}  // namespace

Block parse(std::string_view source, const std::string& where) { return StatementParser(source, where).run(); }

}  // namespace tandem::text::jinja
