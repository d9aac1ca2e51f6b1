// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rational numbers of any size, compared by their residues modulo primes: 10^400, 100!, integers of hundreds of digits.

#include "tandem/reward/math/math_expr.h"

namespace tandem::reward {

/// Built of numbers, sums, products, powers, factorials, binomials and steps alone.
bool is_rational(const Expr& e);
/// Whether two such numbers agree modulo three primes of 61 bits. False where one is not to be had: a tower of powers, a division by
/// 0, a factorial of more than kLargestFactorial. The work is bounded.
bool same_residues(const Expr& a, const Expr& b);

constexpr int kLargestFactorial = 20000;

}  // namespace tandem::reward
