// SPDX-License-Identifier: Apache-2.0
#pragma once
// A template as a tree.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tandem/text/jinja_value/value.h"

namespace tandem::text::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind {
  kConstant,   ///< constant
  kName,       ///< name
  kList,       ///< parts
  kTuple,      ///< parts
  kDict,       ///< parts: key, value, key, value ...
  kNegative,   ///< parts: operand
  kPositive,   ///< parts: operand
  kNot,        ///< parts: operand
  kAnd,        ///< parts: left, right
  kOr,         ///< parts: left, right
  kBinary,     ///< name: + - * / // % **; parts: left, right
  kConcat,     ///< parts, joined as text
  kCompare,    ///< operators; parts: one more than operators
  kCondition,  ///< parts: value, test, other value (null for undefined)
  kAttribute,  ///< name; parts: of what
  kItem,       ///< parts: of what, key
  kSlice,      ///< parts: of what, begin, end, step (null where left out)
  kCall,       ///< parts: function, arguments; named
  kFilter,     ///< name; parts: value (null in a filter block), arguments; named
  kTest,       ///< name; parts: value, arguments; named
};

struct Expression {
  ExpressionKind kind;
  int line = 0;
  int levels = 1;  ///< of the tree below, this one included
  std::string name;
  Value constant;
  std::vector<ExpressionPtr> parts;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> operators;
};

enum class StatementKind {
  kData,      ///< text
  kPrint,     ///< value
  kIf,        ///< branches
  kFor,       ///< target, value, condition (may be null), body, other (of an empty loop)
  kSet,       ///< target, value
  kCapture,   ///< target, value (a chain of filters without a value, or null), body
  kMacro,     ///< text (its name), parameters, body
  kCall,      ///< value (a call), parameters of caller(), body
  kFilter,    ///< value (a chain of filters without a value), body
  kWith,      ///< parameters (none in a `generation` block), body
  kBreak,
  kContinue,
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

struct Branch {
  ExpressionPtr test;  ///< null for else
  Block body;
};

struct Parameter {
  std::string name;
  ExpressionPtr value;  ///< a default, or what `with` sets; may be null
};

/// What is assigned to: a name, a field of a namespace, or several names.
struct Target {
  std::vector<std::string> names;
  std::string field;   ///< of the namespace names[0]
  bool unpacks = false;
};

struct Statement {
  StatementKind kind;
  int line = 0;
  std::string text;
  ExpressionPtr value, condition;
  Target target;
  bool recursive = false;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  Block body, other;
};

}  // namespace tandem::text::jinja
