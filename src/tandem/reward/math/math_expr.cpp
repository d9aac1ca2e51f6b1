// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/math/math_expr.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>

#include "tandem/reward/math/exact.h"
#include "tandem/reward/math/notation.h"

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

constexpr int kNumTrials = 4;

// A point for each variable, away from small numbers where identities happen to hold; a negative one for a negative trial.
Complex point_of(const std::string& name, int trial) {
  if (trial < 0) return -point_of(name, -trial);
  // Mixed well: points of two names that keep their distance from trial to trial make x - y a constant.
  uint64_t mixed = std::hash<std::string>()(name) + static_cast<uint64_t>(trial) * 0x9E3779B97F4A7C15u;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
  return {1.07L + static_cast<long double>((mixed ^ (mixed >> 31)) % 100003) / 30011.0L, 0};
}

Complex evaluate_function(const std::string& name, const std::vector<Complex>& x) {
  static const std::map<std::string_view, Complex (*)(const Complex&)> kOfOne = {
      {"sqrt", std::sqrt},   {"sin", std::sin},     {"cos", std::cos},   {"tan", std::tan},   {"arcsin", std::asin}, {"arccos", std::acos},
      {"arctan", std::atan}, {"sinh", std::sinh},   {"cosh", std::cosh}, {"tanh", std::tanh}, {"ln", std::log},      {"exp", std::exp}};
  if (const auto found = kOfOne.find(name); found != kOfOne.end()) return found->second(x[0]);
  if (name == "root") return x[0].imag() == 0 && x[0].real() < 0 && std::fmod(x[1].real(), 2.0L) == 1.0L
                                 ? Complex(-std::pow(-x[0].real(), 1.0L / x[1].real()))
                                 : std::pow(x[0], Complex(1) / x[1]);
  if (name == "cot") return Complex(1) / std::tan(x[0]);
  if (name == "sec") return Complex(1) / std::cos(x[0]);
  if (name == "csc") return Complex(1) / std::sin(x[0]);
  if (name == "log") return x.size() > 1 ? std::log(x[0]) / std::log(x[1]) : std::log10(x[0]);
  if (name == "abs") return std::abs(x[0]);
  if (name == "floor") return std::floor(x[0].real());
  if (name == "ceil") return std::ceil(x[0].real());
  if (name == "factorial") return std::tgamma(x[0].real() + 1);
  if (name == "binom") return std::tgamma(x[0].real() + 1) / (std::tgamma(x[1].real() + 1) * std::tgamma(x[0].real() - x[1].real() + 1));
  return {NAN, NAN};
}

// A value and how far rounding may have moved it. Hidden: a part of it is too small to show, such as e^{-100} beside 1.
struct Rounded {
  Complex value;
  long double noise = 0;
  bool hidden = false;
};

constexpr long double kUlp = 1.1e-19L;   // of a long double
constexpr long double kSlack = 64;       // roundings within one function of the library
constexpr Complex kUndefined{NAN, NAN};

Rounded rounded(Complex value, long double noise, bool hidden = false) { return {value, noise + kUlp * std::abs(value), hidden}; }

bool is_known(const Rounded& x) { return std::abs(x.value) > kSlack * x.noise; }

// A function that says the same of a tenth more: the cosine of 10^{-30}, and e to it.
bool hides(Complex value, Complex of_more) { return std::abs(of_more - value) <= kSlack * kUlp * std::abs(value); }

// A number that has left the range of a long double is none, rather than 0 or infinite.
Rounded evaluate(const Expr& e, int trial);

Rounded evaluate_product(const Expr& e, int trial) {
  Rounded product{1, 0};
  bool is_zero = false;
  for (const ExprPtr& arg : e.args) {
    const Rounded factor = evaluate(*arg, trial);
    is_zero = is_zero || factor.value == Complex(0);
    product = rounded(product.value * factor.value, product.noise * std::abs(factor.value) + factor.noise * std::abs(product.value),
                      product.hidden || factor.hidden);
  }
  return product.value == Complex(0) && !is_zero ? Rounded{kUndefined} : product;
}

Rounded evaluate_power(const Expr& e, int trial) {
  const Rounded base = evaluate(*e.args[0], trial), exponent = evaluate(*e.args[1], trial);
  const Complex x = base.value, y = exponent.value;
  const bool is_real = x.imag() == 0 && y.imag() == 0 && (x.real() >= 0 || y.real() == std::floor(y.real()));
  const Complex value = is_real ? Complex(std::pow(x.real(), y.real())) : std::pow(x, y);
  if (value == Complex(0) && x != Complex(0)) return {kUndefined};
  const long double size = std::abs(x);
  if (size == 0) return {value, base.noise, base.hidden};
  const bool is_flat = x != Complex(1) && is_known(exponent) && hides(value, std::pow(x, y * 1.1L));
  return rounded(value, std::abs(value) * (std::abs(y) * (base.noise / size + kUlp) + std::abs(std::log(size)) * exponent.noise),
                 base.hidden || exponent.hidden || is_flat);
}

Rounded evaluate_call(const Expr& e, int trial) {
  std::vector<Complex> args, moved, more;
  bool hidden = false, is_known_zero = false;
  for (const ExprPtr& arg : e.args) {
    const Rounded one = evaluate(*arg, trial);
    const bool is_step = e.name == "floor" || e.name == "ceil";
    const long double whole = std::round(one.value.real());
    // What is whole but for rounding is whole.
    args.push_back(is_step && std::abs(one.value.real() - whole) <= kSlack * one.noise ? Complex(whole) : one.value);
    moved.push_back(args.back() + (is_step ? 0.0L : one.noise));
    more.push_back(args.back() * 1.1L);
    hidden = hidden || one.hidden;
    is_known_zero = is_known_zero || !is_known(one);
  }
  const Complex value = evaluate_function(e.name, args);
  const bool counts = is_one_of(e.name, {"floor", "ceil", "factorial", "binom", "abs"});
  hidden = hidden || (!counts && !is_known_zero && args.size() == 1 && hides(value, evaluate_function(e.name, more)));
  return rounded(value, std::abs(evaluate_function(e.name, moved) - value) + kUlp * kSlack * std::abs(value), hidden);
}

Rounded evaluate(const Expr& e, int trial) {
  switch (e.kind) {
    case ExprKind::kNumber: {
      const long double value = e.number ? to_long_double(*e.number) : e.approximate;
      return value == 0 && !e.number ? Rounded{kUndefined} : rounded(value, 0);
    }
    case ExprKind::kConstant:
      if (e.name == "pi") return rounded(3.14159265358979323846264L, 0);
      if (e.name == "e") return rounded(2.71828182845904523536029L, 0);
      if (e.name == "i") return {Complex(0, 1)};
      return {Complex(INFINITY, 0)};
    case ExprKind::kVariable: return rounded(point_of(e.name, trial), 0);
    case ExprKind::kAdd: {
      Rounded sum;
      long double least = INFINITY;
      for (const ExprPtr& arg : e.args) {
        const Rounded term = evaluate(*arg, trial);
        sum = rounded(sum.value + term.value, sum.noise + term.noise, sum.hidden || term.hidden);
        if (is_known(term)) least = std::min(least, std::abs(term.value));
      }
      sum.hidden = sum.hidden || least <= kSlack * kUlp * std::abs(sum.value);
      return sum;
    }
    case ExprKind::kMultiply: return evaluate_product(e, trial);
    case ExprKind::kPower: return evaluate_power(e, trial);
    case ExprKind::kFunction: break;
  }
  return evaluate_call(e, trial);
}

bool is_infinite(const Expr& e, int& sign) {
  if (e.kind == ExprKind::kConstant && e.name == "infinity") return true;
  if (e.kind != ExprKind::kMultiply || e.args.size() != 2 || !e.args[0]->number) return false;
  if (*e.args[0]->number == Rational{-1, 1}) sign = -sign;
  return is_infinite(*e.args[1], sign);
}

bool is_finite(Complex z) { return std::isfinite(z.real()) && std::isfinite(z.imag()); }

// What rounding may have moved is known to this share of the value, and of 1 where that is 0: past it, the digits say nothing.
constexpr long double kKnown = 1e-9L;

enum class Agreement { kSame, kDifferent, kUnknown };

Agreement agreement(const Rounded& a, const Rounded& b) {
  if (!is_finite(a.value) || !is_finite(b.value))
    return is_finite(a.value) == is_finite(b.value) ? Agreement::kUnknown : Agreement::kDifferent;
  const long double size_a = std::abs(a.value), size_b = std::abs(b.value), slack = kSlack * (a.noise + b.noise);
  if (!(std::abs(a.value - b.value) <= slack)) return Agreement::kDifferent;
  const bool are_zero = size_a <= kSlack * a.noise && size_b <= kSlack * b.noise;
  if (a.hidden || b.hidden) return Agreement::kUnknown;
  return slack <= kKnown * (are_zero ? 1 : std::max(size_a, size_b)) ? Agreement::kSame : Agreement::kUnknown;
}

// A decimal of at least six places and six digits stands for every number that rounds to it.
bool rounds_to(const Expr& decimal, const Expr& other) {
  if (decimal.decimals < 6 || other.decimals >= 0) return false;
  const Complex a = evaluate(decimal, 0).value, b = evaluate(other, 0).value;
  const long double unit = std::pow(10.0L, -decimal.decimals);
  return b.imag() == 0 && std::abs(a.real()) >= 1e5L * unit && std::abs(a.real() - b.real()) <= 0.5L * unit * 1.000001L;
}

// Whether it is so of one node of the expression.
bool any_node(const Expr& e, const std::function<bool(const Expr&)>& is_so) {
  return is_so(e) || std::ranges::any_of(e.args, [&](const ExprPtr& arg) { return any_node(*arg, is_so); });
}

bool has_absolute(const Expr& e) {
  return any_node(e, [](const Expr& one) { return one.kind == ExprKind::kFunction && one.name == "abs"; });
}

// A root of a square is positive: \sqrt{x^2} is x at positive points alone.
bool has_root(const Expr& e) {
  return any_node(e, [](const Expr& one) {
    if (one.kind == ExprKind::kFunction) return one.name == "sqrt" || one.name == "root";
    const auto exponent = one.kind == ExprKind::kPower ? exact_value(*one.args[1]) : std::nullopt;
    return exponent && exponent->den % 2 == 0;
  });
}

// At a negative point \sqrt{x}\sqrt{y} says nothing of \sqrt{xy}.
bool roots_are_real(const Expr& e, int trial) {
  return !any_node(e, [trial](const Expr& one) {
    const bool is_root = (one.kind == ExprKind::kFunction && is_one_of(one.name, {"sqrt", "root", "ln", "log"})) ||
                         (one.kind == ExprKind::kPower && (!is_rational(*one.args[1]) || has_root(one)));
    return is_root && !one.args.empty() && evaluate(*one.args[0], trial).value.real() < 0;
  });
}

constexpr size_t kMostTerms = 12;
constexpr int kMostTermDepth = 4;

// The terms of a sum, or the factors of a product.
void take_apart(const ExprPtr& e, ExprKind kind, std::vector<ExprPtr>& out) {
  if (e->kind != kind) return out.push_back(e);
  for (const ExprPtr& arg : e->args) take_apart(arg, kind, out);
}

bool same_by_terms(const Expr& a, const Expr& b, int depth);

bool same_term(const Expr& a, const Expr& b, int depth) {
  const auto exact_a = exact_value(a), exact_b = exact_value(b);
  if (exact_a && exact_b) return *exact_a == *exact_b;
  if (is_rational(a) && is_rational(b)) return same_residues(a, b);
  const bool vary = has_variables(a) || has_variables(b);
  for (int trial = vary ? kNumTrials : 0; trial >= (vary ? 1 : 0); --trial) {
    const Agreement one = agreement(evaluate(a, trial), evaluate(b, trial));
    if (one != Agreement::kSame) return one == Agreement::kUnknown && same_by_terms(a, b, depth + 1);
  }
  return true;
}

// Where the digits do not tell: sums of the same terms, products of the same factors, functions of the same arguments.
bool same_by_terms(const Expr& a, const Expr& b, int depth) {
  if (depth > kMostTermDepth || a.kind != b.kind || a.name != b.name) return false;
  if (a.kind == ExprKind::kNumber || a.args.empty()) return a.kind != ExprKind::kNumber || (a.number && b.number && *a.number == *b.number);
  std::vector<ExprPtr> left, right;
  const bool in_any_order = a.kind == ExprKind::kAdd || a.kind == ExprKind::kMultiply;
  for (const auto& [e, parts] : {std::pair{&a, &left}, {&b, &right}})
    for (const ExprPtr& arg : e->args)
      if (in_any_order) take_apart(arg, e->kind, *parts);
      else parts->push_back(arg);
  if (left.size() != right.size() || left.size() > kMostTerms) return false;
  for (const ExprPtr& part : left) {
    const auto end = in_any_order ? right.end() : right.begin() + 1;
    const auto found = std::find_if(right.begin(), end, [&](const ExprPtr& other) { return same_term(*part, *other, depth); });
    if (found == end) return false;
    right.erase(found);
  }
  return true;
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

namespace {

// n (n - 1) ... of k factors, where that fits.
std::optional<Rational> falling(__int128 n, __int128 k) {
  if (n < 0 || k < 0 || k > 40) return std::nullopt;
  std::optional<Rational> product = Rational{1, 1};
  for (__int128 i = 0; i < k && product; ++i) product = multiply(*product, {n - i, 1});
  return product;
}

}  // namespace

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
      if (e.name == "floor" || e.name == "ceil") {
        const __int128 down = args[0].num / args[0].den - (args[0].num % args[0].den < 0 ? 1 : 0);
        return Rational{down + (e.name == "ceil" && args[0].num % args[0].den != 0 ? 1 : 0), 1};
      }
      if (e.name == "factorial") return args[0].den == 1 ? falling(args[0].num, args[0].num) : std::nullopt;
      if (e.name == "binom" && args[0].den == 1 && args[1].den == 1 && args[1].num >= 0 && args[1].num <= args[0].num) {
        const auto top = falling(args[0].num, args[1].num), bottom = falling(args[1].num, args[1].num);
        return top && bottom ? Rational::make(top->num, bottom->num) : std::nullopt;
      }
      return std::nullopt;
    default: return std::nullopt;
  }
}

bool has_variables(const Expr& e) {
  return any_node(e, [](const Expr& one) { return one.kind == ExprKind::kVariable; });
}

bool same_value(const Expr& a, const Expr& b) {
  int sign_a = 1, sign_b = 1;
  const bool infinite_a = is_infinite(a, sign_a), infinite_b = is_infinite(b, sign_b);
  if (infinite_a || infinite_b) return infinite_a && infinite_b && sign_a == sign_b;
  if (!has_variables(a) && !has_variables(b)) {
    const auto exact_a = exact_value(a), exact_b = exact_value(b);
    if (exact_a && exact_b && *exact_a == *exact_b) return true;
    if (rounds_to(a, b) || rounds_to(b, a)) return true;
    if (exact_a && exact_b) return false;
    if (is_rational(a) && is_rational(b)) return same_residues(a, b);
    const Agreement agree = agreement(evaluate(a, 0), evaluate(b, 0));
    return agree == Agreement::kSame || (agree == Agreement::kUnknown && same_by_terms(a, b, 0));
  }
  int num_same = 0;
  for (int trial = 1; trial <= kNumTrials; ++trial) {
    const Agreement one = agreement(evaluate(a, trial), evaluate(b, trial));
    if (one == Agreement::kDifferent) return false;
    if (one == Agreement::kSame) ++num_same;
  }
  const bool both_signs = has_absolute(a) || has_absolute(b) || has_root(a) || has_root(b);
  if (num_same < 2) return !both_signs && same_by_terms(a, b, 0);
  for (int trial = -1; both_signs && trial >= -kNumTrials; --trial) {
    if ((has_root(a) || has_root(b)) && (!roots_are_real(a, trial) || !roots_are_real(b, trial))) continue;
    const Rounded x = evaluate(a, trial), y = evaluate(b, trial);
    if (is_finite(x.value) && is_finite(y.value) && agreement(x, y) == Agreement::kDifferent) return false;
  }
  return true;
}

std::optional<double> constant_ratio(const Expr& a, const Expr& b) {
  Complex ratio;
  const int least = has_absolute(a) || has_absolute(b) ? -kNumTrials : 1;  // |x| is x at positive points alone
  for (int trial = kNumTrials; trial >= least; --trial) {
    if (trial == 0) continue;
    const Complex va = evaluate(a, trial).value, vb = evaluate(b, trial).value;
    if (std::abs(vb) == 0 || std::abs(va) == 0) return std::nullopt;
    if (trial == kNumTrials) ratio = va / vb;
    if (!is_finite(va / vb) || std::abs(va / vb - ratio) > 1e-12L * std::abs(ratio)) return std::nullopt;
  }
  return std::abs(ratio.imag()) <= 1e-9L * std::abs(ratio.real()) ? std::optional(static_cast<double>(ratio.real())) : std::nullopt;
}

bool proportional(const Expr& a, const Expr& b) { return constant_ratio(a, b).has_value(); }

ExprPtr number(const Rational& r) { return std::make_shared<Expr>(Expr{.number = r}); }
ExprPtr node(ExprKind kind, std::vector<ExprPtr> args, std::string name) {
  return std::make_shared<Expr>(Expr{.kind = kind, .name = std::move(name), .args = std::move(args)});
}
ExprPtr negated(ExprPtr e) { return node(ExprKind::kMultiply, {number({-1, 1}), std::move(e)}); }
ExprPtr difference(ExprPtr a, ExprPtr b) { return node(ExprKind::kAdd, {std::move(a), negated(std::move(b))}); }

}  // namespace tandem::reward
