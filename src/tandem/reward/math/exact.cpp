// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/math/exact.h"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace tandem::reward {
namespace {

// Chosen at random below 2^61.
constexpr uint64_t kPrimes[] = {2305398479450665657u, 2305344115253857891u, 2304419442843655919u};

class Field {
 public:
  explicit Field(uint64_t prime) : prime_(prime) {}

  std::optional<uint64_t> value(const Expr& e) {
    switch (e.kind) {
      case ExprKind::kNumber: return e.number ? rational(*e.number) : numeral(e);
      case ExprKind::kAdd:
      case ExprKind::kMultiply: {
        const bool adds = e.kind == ExprKind::kAdd;
        uint64_t result = adds ? 0 : 1;
        for (const ExprPtr& arg : e.args) {
          const auto one = value(*arg);
          if (!one) return std::nullopt;
          result = adds ? (result + *one) % prime_ : times(result, *one);
        }
        return result;
      }
      case ExprKind::kPower: {
        const auto exponent = exact_value(*e.args[1]);
        const auto base = value(*e.args[0]);
        return exponent && exponent->den == 1 && base ? power(*base, exponent->num) : std::nullopt;
      }
      case ExprKind::kFunction: return function(e);
      default: return std::nullopt;
    }
  }

 private:
  uint64_t times(uint64_t a, uint64_t b) const { return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b % prime_); }
  uint64_t of(__int128 n) const { return static_cast<uint64_t>((n % prime_ + prime_) % prime_); }

  // By Fermat's theorem the exponent counts modulo one less than the prime.
  std::optional<uint64_t> power(uint64_t base, __int128 exponent) const {
    if (base == 0) return exponent > 0 ? std::optional<uint64_t>(0) : std::nullopt;
    const __int128 order = static_cast<__int128>(prime_) - 1;
    auto left = static_cast<uint64_t>((exponent % order + order) % order);
    uint64_t result = 1;
    for (; left > 0; left >>= 1, base = times(base, base))
      if (left & 1) result = times(result, base);
    return result;
  }
  std::optional<uint64_t> divided(uint64_t a, std::optional<uint64_t> b) const {
    const auto inverse = b ? power(*b, -1) : std::nullopt;
    return inverse ? std::optional(times(a, *inverse)) : std::nullopt;
  }
  std::optional<uint64_t> rational(const Rational& r) const { return divided(of(r.num), of(r.den)); }
  std::optional<uint64_t> numeral(const Expr& e) const {
    uint64_t result = 0;
    for (char digit : e.name) result = (times(result, 10) + static_cast<uint64_t>(digit - '0')) % prime_;
    return divided(result, power(10, std::max(e.decimals, 0)));
  }
  std::optional<uint64_t> product(__int128 from, __int128 to) {
    if (to - from > kLargestFactorial || (budget_ -= static_cast<int>(to - from)) < 0) return std::nullopt;
    uint64_t result = 1;
    for (__int128 i = from; i <= to; ++i) result = times(result, of(i));
    return result;
  }
  std::optional<uint64_t> function(const Expr& e) {
    if (const auto whole = exact_value(e)) return rational(*whole);
    const auto n = exact_value(*e.args[0]);
    if (!n || n->den != 1 || n->num < 0) return std::nullopt;
    if (e.name == "factorial") return product(1, n->num);
    const auto k = e.name == "binom" ? exact_value(*e.args[1]) : std::nullopt;
    if (!k || k->den != 1 || k->num < 0 || k->num > n->num) return std::nullopt;
    const auto top = product(n->num - k->num + 1, n->num);
    return top ? divided(*top, product(1, k->num)) : std::nullopt;
  }

  const uint64_t prime_;
  int budget_ = 4 * kLargestFactorial;
};

}  // namespace

bool is_rational(const Expr& e) {
  switch (e.kind) {
    case ExprKind::kConstant:
    case ExprKind::kVariable: return false;
    case ExprKind::kPower: {
      const auto exponent = exact_value(*e.args[1]);
      if (exponent ? exponent->den != 1 : !is_rational(*e.args[1])) return exact_value(e).has_value();
      return is_rational(*e.args[0]);
    }
    case ExprKind::kFunction:
      if (e.name == "factorial" || e.name == "binom" || e.name == "floor" || e.name == "ceil" || e.name == "abs") break;
      return exact_value(e).has_value();
    default: break;
  }
  return std::all_of(e.args.begin(), e.args.end(), [](const ExprPtr& arg) { return is_rational(*arg); });
}

bool same_residues(const Expr& a, const Expr& b) {
  for (const uint64_t prime : kPrimes) {
    const auto x = Field(prime).value(a), y = Field(prime).value(b);
    if (!x || !y || *x != *y) return false;
  }
  return true;
}

}  // namespace tandem::reward
