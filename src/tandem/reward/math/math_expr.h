// SPDX-License-Identifier: Apache-2.0
#pragma once
// Mathematical expressions as people and LaTeX write them, compared by value.
//
// Two expressions are equal if their exact rational values are; numbers beyond 127 bits are compared by their residues (exact.h).
// With roots, functions and variables they are equal if they agree at several fixed points, up to the rounding of the terms that
// made them, which must be small beside the value. No algebra is done: agreement at such points is a proof in practice, and it cannot
// run away.

#include <complex>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::reward {

/// A fraction in lowest terms; operations give nullopt once a number leaves 127 bits.
struct Rational {
  __int128 num = 0, den = 1;
  static std::optional<Rational> make(__int128 num, __int128 den);
  bool operator==(const Rational&) const = default;
};
std::optional<Rational> add(const Rational& a, const Rational& b);
std::optional<Rational> multiply(const Rational& a, const Rational& b);
std::optional<Rational> power(const Rational& base, const Rational& exponent);

enum class ExprKind { kNumber, kConstant, kVariable, kAdd, kMultiply, kPower, kFunction };

/// A node of an expression: a value type with shared children (immutable, so sharing is safe).
struct Expr {
  ExprKind kind = ExprKind::kNumber;
  std::optional<Rational> number;                 ///< kNumber, when it fits
  long double approximate = 0;                    ///< kNumber
  int decimals = -1;                              ///< kNumber: digits after the point as written, -1 without a point
  std::string name;                               ///< variable, constant or function; of a number that does not fit its digits
  std::vector<std::shared_ptr<const Expr>> args;
};
using ExprPtr = std::shared_ptr<const Expr>;

/// nullptr if the text is no expression this parser knows. Input is bounded in length and depth.
ExprPtr parse_expression(std::string_view text);

/// Exact value of an expression without variables, roots that do not come out, or functions.
std::optional<Rational> exact_value(const Expr& e);
bool has_variables(const Expr& e);
bool same_value(const Expr& a, const Expr& b);
/// One is a constant multiple of the other, so a = 0 and b = 0 have the same solutions.
bool proportional(const Expr& a, const Expr& b);
/// a / b where that is one real number at every point tried; nullopt where it is none.
std::optional<double> constant_ratio(const Expr& a, const Expr& b);

ExprPtr number(const Rational& r);
ExprPtr node(ExprKind kind, std::vector<ExprPtr> args, std::string name = "");
ExprPtr negated(ExprPtr e);
/// a - b.
ExprPtr difference(ExprPtr a, ExprPtr b);

}  // namespace tandem::reward
