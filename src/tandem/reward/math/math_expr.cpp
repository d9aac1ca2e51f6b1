// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/math/math_expr.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

namespace tandem::reward {

using Complex = std::complex<long double>;

namespace {

constexpr __int128 kLimit = (static_cast<__int128>(1) << 120);

__int128 gcd(__int128 a, __int128 b) {
  if (a < 0) a = -a;
  if (b < 0) b = -b;
  while (b != 0) {
    const __int128 rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// n-th root of a perfect power; nullopt otherwise.
std::optional<__int128> exact_root(__int128 value, int64_t n) {
  if (value < 0) return std::nullopt;
  const auto guess = static_cast<__int128>(std::llround(std::pow(static_cast<long double>(value), 1.0L / static_cast<long double>(n))));
  for (__int128 root = guess > 0 ? guess - 1 : 0; root <= guess + 1; ++root) {
    __int128 product = 1;
    bool over = false;
    for (int64_t i = 0; i < n && !over; ++i) over = __builtin_mul_overflow(product, root, &product);
    if (!over && product == value) return root;
  }
  return std::nullopt;
}

long double to_long_double(const Rational& r) { return static_cast<long double>(r.num) / static_cast<long double>(r.den); }

// A point for each variable, away from small numbers where identities happen to hold.
Complex point_of(const std::string& name, int trial) {
  const size_t hash = std::hash<std::string>()(name) * 2654435761u + static_cast<size_t>(trial) * 40503u;
  return {0.7L + static_cast<long double>(hash % 1009) / 613.0L + 0.37L * static_cast<long double>(trial), 0};
}

Complex evaluate_function(const std::string& name, const std::vector<Complex>& x) {
  if (name == "sqrt") return std::sqrt(x[0]);
  if (name == "root") return x[0].imag() == 0 && x[0].real() < 0 && std::fmod(x[1].real(), 2.0L) == 1.0L
                                 ? Complex(-std::pow(-x[0].real(), 1.0L / x[1].real()))
                                 : std::pow(x[0], Complex(1) / x[1]);
  if (name == "sin") return std::sin(x[0]);
  if (name == "cos") return std::cos(x[0]);
  if (name == "tan") return std::tan(x[0]);
  if (name == "cot") return Complex(1) / std::tan(x[0]);
  if (name == "sec") return Complex(1) / std::cos(x[0]);
  if (name == "csc") return Complex(1) / std::sin(x[0]);
  if (name == "arcsin") return std::asin(x[0]);
  if (name == "arccos") return std::acos(x[0]);
  if (name == "arctan") return std::atan(x[0]);
  if (name == "ln") return std::log(x[0]);
  if (name == "log") return x.size() > 1 ? std::log(x[0]) / std::log(x[1]) : std::log10(x[0]);
  if (name == "exp") return std::exp(x[0]);
  if (name == "abs") return std::abs(x[0]);
  if (name == "floor") return std::floor(x[0].real());
  if (name == "ceil") return std::ceil(x[0].real());
  if (name == "factorial") return std::tgamma(x[0].real() + 1);
  if (name == "binom") return std::tgamma(x[0].real() + 1) / (std::tgamma(x[1].real() + 1) * std::tgamma(x[0].real() - x[1].real() + 1));
  return {NAN, NAN};
}

Complex evaluate(const Expr& e, int trial) {
  switch (e.kind) {
    case ExprKind::kNumber: return e.number ? to_long_double(*e.number) : e.approximate;
    case ExprKind::kConstant:
      if (e.name == "pi") return 3.14159265358979323846L;
      if (e.name == "e") return 2.71828182845904523536L;
      if (e.name == "i") return {0, 1};
      return {INFINITY, 0};
    case ExprKind::kVariable: return point_of(e.name, trial);
    case ExprKind::kAdd: {
      Complex sum = 0;
      for (const ExprPtr& arg : e.args) sum += evaluate(*arg, trial);
      return sum;
    }
    case ExprKind::kMultiply: {
      Complex product = 1;
      for (const ExprPtr& arg : e.args) product *= evaluate(*arg, trial);
      return product;
    }
    case ExprKind::kPower: {
      const Complex base = evaluate(*e.args[0], trial), exponent = evaluate(*e.args[1], trial);
      if (base.imag() == 0 && exponent.imag() == 0 && (base.real() >= 0 || exponent.real() == std::floor(exponent.real())))
        return std::pow(base.real(), exponent.real());
      return std::pow(base, exponent);
    }
    case ExprKind::kFunction: break;
  }
  std::vector<Complex> args;
  for (const ExprPtr& arg : e.args) args.push_back(evaluate(*arg, trial));
  return evaluate_function(e.name, args);
}

void collect_variables(const Expr& e, std::set<std::string>& names) {
  if (e.kind == ExprKind::kVariable) names.insert(e.name);
  for (const ExprPtr& arg : e.args) collect_variables(*arg, names);
}

bool is_infinite(const Expr& e, int& sign) {
  if (e.kind == ExprKind::kConstant && e.name == "infinity") return true;
  if (e.kind != ExprKind::kMultiply || e.args.size() != 2 || !e.args[0]->number) return false;
  if (*e.args[0]->number == Rational{-1, 1}) sign = -sign;
  return is_infinite(*e.args[1], sign);
}

bool close(Complex a, Complex b) {
  if (!std::isfinite(a.real()) || !std::isfinite(a.imag()) || !std::isfinite(b.real()) || !std::isfinite(b.imag())) return false;
  return std::abs(a - b) <= 1e-12L * std::max<long double>({1e-3L, std::abs(a), std::abs(b)});
}

// A decimal of at least six places stands for every number that rounds to it.
bool rounds_to(const Expr& decimal, const Expr& other) {
  if (decimal.decimals < 6 || other.decimals >= 0) return false;
  const Complex a = evaluate(decimal, 0), b = evaluate(other, 0);
  return b.imag() == 0 && std::abs(a.real() - b.real()) <= 0.5L * std::pow(10.0L, -decimal.decimals) * 1.000001L;
}

}  // namespace

std::optional<Rational> Rational::make(__int128 num, __int128 den) {
  if (den == 0) return std::nullopt;
  if (den < 0) {
    num = -num;
    den = -den;
  }
  const __int128 common = gcd(num, den);
  num /= common;
  den /= common;
  if (num > kLimit || num < -kLimit || den > kLimit) return std::nullopt;
  return Rational{num, den};
}

std::optional<Rational> add(const Rational& a, const Rational& b) {
  __int128 left, right, den, num;
  if (__builtin_mul_overflow(a.num, b.den, &left) || __builtin_mul_overflow(b.num, a.den, &right) ||
      __builtin_mul_overflow(a.den, b.den, &den) || __builtin_add_overflow(left, right, &num))
    return std::nullopt;
  return Rational::make(num, den);
}

std::optional<Rational> multiply(const Rational& a, const Rational& b) {
  __int128 num, den;
  if (__builtin_mul_overflow(a.num, b.num, &num) || __builtin_mul_overflow(a.den, b.den, &den)) return std::nullopt;
  return Rational::make(num, den);
}

std::optional<Rational> power(const Rational& base, const Rational& exponent) {
  if (exponent.den > 64 || exponent.num > 4096 || exponent.num < -4096) return std::nullopt;
  Rational root = base;
  if (exponent.den != 1) {
    const bool odd_of_negative = base.num < 0 && exponent.den % 2 == 1;
    const auto num = exact_root(odd_of_negative ? -base.num : base.num, static_cast<int64_t>(exponent.den));
    const auto den = exact_root(base.den, static_cast<int64_t>(exponent.den));
    if (!num || !den) return std::nullopt;
    root = {odd_of_negative ? -*num : *num, *den};
  }
  int64_t times = static_cast<int64_t>(exponent.num);
  if (times < 0) {
    const auto inverse = Rational::make(root.den, root.num);
    if (!inverse) return std::nullopt;
    root = *inverse;
    times = -times;
  }
  Rational result{1, 1};
  for (int64_t i = 0; i < times; ++i) {
    const auto next = multiply(result, root);
    if (!next) return std::nullopt;
    if (*next == result) break;  // 0 and 1
    result = *next;
  }
  return root == Rational{-1, 1} ? Rational{times % 2 == 0 ? 1 : -1, 1} : result;
}

std::optional<Rational> exact_value(const Expr& e) {
  if (e.kind == ExprKind::kNumber) return e.number;
  std::vector<Rational> args;
  for (const ExprPtr& arg : e.args) {
    const auto value = exact_value(*arg);
    if (!value) return std::nullopt;
    args.push_back(*value);
  }
  std::optional<Rational> result;
  switch (e.kind) {
    case ExprKind::kAdd:
      result = Rational{0, 1};
      for (const Rational& r : args) result = result ? add(*result, r) : result;
      return result;
    case ExprKind::kMultiply:
      result = Rational{1, 1};
      for (const Rational& r : args) result = result ? multiply(*result, r) : result;
      return result;
    case ExprKind::kPower: return power(args[0], args[1]);
    case ExprKind::kFunction:
      if (e.name == "sqrt") return power(args[0], {1, 2});
      if (e.name == "root" && args[1].num != 0) return power(args[0], {args[1].den, args[1].num});
      if (e.name == "abs") return Rational{args[0].num < 0 ? -args[0].num : args[0].num, args[0].den};
      return std::nullopt;
    default: return std::nullopt;
  }
}

bool same_value(const Expr& a, const Expr& b) {
  int sign_a = 1, sign_b = 1;
  const bool infinite_a = is_infinite(a, sign_a), infinite_b = is_infinite(b, sign_b);
  if (infinite_a || infinite_b) return infinite_a && infinite_b && sign_a == sign_b;
  std::set<std::string> names_a, names_b;
  collect_variables(a, names_a);
  collect_variables(b, names_b);
  if (names_a.empty() && names_b.empty()) {
    const auto exact_a = exact_value(a), exact_b = exact_value(b);
    if (exact_a && exact_b && *exact_a == *exact_b) return true;
    if (rounds_to(a, b) || rounds_to(b, a)) return true;
    if (exact_a && exact_b) return false;
    return close(evaluate(a, 0), evaluate(b, 0));
  }
  for (int trial = 1; trial <= 4; ++trial)
    if (!close(evaluate(a, trial), evaluate(b, trial))) return false;
  return true;
}

std::optional<double> constant_ratio(const Expr& a, const Expr& b) {
  Complex ratio;
  for (int trial = 1; trial <= 4; ++trial) {
    const Complex va = evaluate(a, trial), vb = evaluate(b, trial);
    if (std::abs(vb) == 0 || std::abs(va) == 0) return std::nullopt;
    if (trial == 1) ratio = va / vb;
    if (!close(va / vb, ratio)) return std::nullopt;
  }
  return std::abs(ratio.imag()) <= 1e-9L * std::abs(ratio.real()) ? std::optional(static_cast<double>(ratio.real())) : std::nullopt;
}

bool proportional(const Expr& a, const Expr& b) { return constant_ratio(a, b).has_value(); }

ExprPtr difference(ExprPtr a, ExprPtr b) {
  auto minus_one = std::make_shared<Expr>();
  minus_one->number = Rational{-1, 1};
  auto negative = std::make_shared<Expr>();
  negative->kind = ExprKind::kMultiply;
  negative->args = {minus_one, std::move(b)};
  auto sum = std::make_shared<Expr>();
  sum->kind = ExprKind::kAdd;
  sum->args = {std::move(a), negative};
  return sum;
}

}  // namespace tandem::reward
