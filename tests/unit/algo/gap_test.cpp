// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/gap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace tandem::algo {
namespace {

GapReport report_of(std::span<const double> gaps) {
  GapSums sums;
  for (const double gap : gaps) sums.add(gap);
  return sums.report().value();
}

TEST(Gap, P99IsWithinHalfABinOfThatOfTheSortedGaps) {
  std::mt19937_64 random(11);
  for (const size_t n : {1, 2, 99, 100, 101, 5000}) {
    for (const double zeros : {0.0, 0.5, 0.98}) {
      std::vector<double> gaps;
      for (size_t i = 0; i < n; ++i) {
        const double exponent = std::uniform_real_distribution(-23.9, 5.9)(random);
        gaps.push_back(std::uniform_real_distribution(0.0, 1.0)(random) < zeros ? 0 : std::exp2(exponent));
      }
      const GapReport report = report_of(gaps);
      std::ranges::sort(gaps);
      const double right = gaps[static_cast<size_t>(std::ceil(0.99 * static_cast<double>(n))) - 1];
      EXPECT_LE(std::abs(report.p99 - right), right * (std::exp2(1.0 / 32) - 1) * (1 + 1e-9)) << n << " gaps, " << zeros;
      EXPECT_EQ(report.max, gaps.back());
      EXPECT_LE(report.p99, report.max);
      double sum = 0;
      for (const double gap : gaps) sum += gap;
      EXPECT_NEAR(report.mean, sum / static_cast<double>(n), 1e-12 * sum);
    }
  }
}

TEST(Gap, WithoutAGapAllIsExactlyZeroAndWithoutATokenThereIsNone) {
  GapSums sums;
  EXPECT_FALSE(sums.report());
  for (int i = 0; i < 1000; ++i) sums.add(0.0);
  EXPECT_EQ(sums.tokens(), 1000);
  EXPECT_EQ(sums.report()->mean, 0.0);
  EXPECT_EQ(sums.report()->p99, 0.0);
  EXPECT_EQ(sums.report()->max, 0.0);
  for (int i = 0; i < 10; ++i) sums.add(1.0);
  EXPECT_EQ(sums.report()->p99, 0.0) << "990 of 1010 are at most that";
  sums.add(1.0), sums.add(1.0);
  EXPECT_GT(sums.report()->p99, 0.97);
}

TEST(Gap, OutOfTheBinsCountsAtTheirEnds) {
  EXPECT_EQ(report_of(std::vector{1e-12}).p99, 1e-12) << "at most max";
  EXPECT_NEAR(report_of(std::vector{1000.0}).p99, 64, 2);
  EXPECT_EQ(report_of(std::vector{std::numeric_limits<double>::quiet_NaN()}).max, std::numeric_limits<double>::infinity());
}

TEST(Gap, PartsAddUpToTheWhole) {
  std::mt19937_64 random(5);
  GapSums whole, a, b;
  for (int i = 0; i < 3000; ++i) {
    const double gap = i % 7 == 0 ? 0 : std::exponential_distribution(3.0)(random);
    whole.add(gap), (i % 3 == 0 ? a : b).add(gap);
  }
  a.add(b);
  EXPECT_EQ(a.tokens(), 3000);
  EXPECT_EQ(a.report()->p99, whole.report()->p99);
  EXPECT_EQ(a.report()->max, whole.report()->max);
  EXPECT_NEAR(a.report()->mean, whole.report()->mean, 1e-12);
}

}  // namespace
}  // namespace tandem::algo
