// SPDX-License-Identifier: Apache-2.0
#pragma once
// How far the log-probabilities of rollout and training are apart, on tokens that one policy sampled.

#include <array>
#include <cstdint>
#include <optional>

namespace tandem::algo {

/// Of the absolute differences |behavior - current| of some tokens.
struct GapReport {
  double mean = 0;
  double p99 = 0;  ///< GapSums::report says how exact
  double max = 0;
};

/// Sums of some tokens. Those of all ranks add up field by field, but for the maximum.
class GapSums {
 public:
  /// Bins of equal ratio from 2^kLowest to 2^kHighest; less than that counts in the first of them, more in the last.
  static constexpr int kPerOctave = 16, kLowest = -24, kHighest = 6;

  /// Of one token; what is not finite counts as infinite.
  void add(double gap);
  void add(const GapSums& other);
  int64_t tokens() const;
  /// nullopt without a token. p99 is the value at place ceil(0.99 n) of the n gaps in order, as the middle of its bin, and at most max. So
  /// it is within 2.2 % (2^(1/32) - 1) of that value between 2^-24 = 6e-8 and 2^6 = 64, and exact where that value is 0.
  std::optional<GapReport> report() const;

  /// The sums in the order in which they travel; max is reduced beside them.
  void each(auto&& visit) {
    visit(sum_), visit(zeros_);
    for (double& bin : bins_) visit(bin);
  }
  double max = 0;

 private:
  double sum_ = 0;
  double zeros_ = 0;                                             // tokens without a gap
  std::array<double, kPerOctave * (kHighest - kLowest)> bins_{};  // tokens
};

}  // namespace tandem::algo
