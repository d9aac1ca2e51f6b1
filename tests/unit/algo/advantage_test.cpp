// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/advantage.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace tandem::algo {
namespace {

std::vector<double> compare(const std::vector<double>& scores, const std::vector<int64_t>& groups, const Algorithm& algorithm) {
  const std::vector<int64_t> lengths(scores.size(), 2);
  return compare_responses({scores, groups, lengths, {}}, algorithm);
}

TEST(Advantages, CompareAResponseWithItsGroupOnly) {
  const auto a = compare({1, 100, 3, 300}, {7, 9, 7, 9}, {.std_eps = 0});
  EXPECT_DOUBLE_EQ(a[0], -std::sqrt(0.5));
  EXPECT_DOUBLE_EQ(a[2], std::sqrt(0.5));
  EXPECT_DOUBLE_EQ(a[3], a[2]) << "the scale of the scores does not matter";
}

TEST(Advantages, OfDrGrpoKeepTheScale) {
  EXPECT_EQ(compare({0, 1, 1, 1}, {0, 0, 0, 0}, {.advantage = Advantage::kDrGrpo}), (std::vector<double>{-0.75, 0.25, 0.25, 0.25}));
}

// Exactly: a rounded mean would leave a trace, and a trainer takes what is not 0 for a signal.
TEST(Advantages, OfEqualScoresAreZero) {
  std::vector<std::string> words = advantage_names();
  std::erase(words, "remax");  // its comparison is with the greedy answer alone
  for (const std::string& word : words)
    for (const double score : {0.3, 0.1, 1.0 / 3, -0.7, 1e-300, 1.7e308})
      for (const size_t size : {2, 3, 7, 8, 64}) {
        const std::vector<double> scores(size, score);
        const std::vector<int64_t> groups(size, 1), lengths(size, 3);
        for (double a : compare_responses({scores, groups, lengths, scores}, {.advantage = advantage_of(word)}))
          EXPECT_EQ(a, 0) << score << " in a group of " << size << ", " << word;
      }
}

TEST(Advantages, OfEqualScoresOfUnequalLengthsAreZero) {
  const std::vector<double> scores = {0.1, 0.1, 0.1, 0.4, 0.5};
  const std::vector<int64_t> groups = {0, 0, 0, 1, 1}, lengths = {3, 5, 7, 2, 9};
  const auto a = compare_responses({scores, groups, lengths, {}}, {.advantage = Advantage::kOpo});
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(a[i], 0);
  EXPECT_NE(a[3], 0) << "the other group has a signal";
}

TEST(Advantages, OfRlooCompareWithTheOthersAlone) {
  EXPECT_EQ(compare({3, 0, 0}, {1, 1, 1}, {.advantage = Advantage::kRloo}), (std::vector<double>{3, -1.5, -1.5}));
}

TEST(Advantages, OfOpoWeighTheBaselineByLength) {
  const std::vector<double> scores = {1, 0};
  const std::vector<int64_t> groups = {0, 0}, lengths = {3, 1};
  EXPECT_EQ(compare_responses({scores, groups, lengths, {}}, {.advantage = Advantage::kOpo}), (std::vector<double>{0.25, -0.75}));
}

TEST(Advantages, OfPassKGoToTheBestAlone) {
  const auto a = compare({1, 4, 2}, {1, 1, 1}, {.advantage = Advantage::kGrpoPassK, .std_eps = 0});
  EXPECT_EQ(a[0], 0);
  EXPECT_GT(a[1], 0);
  EXPECT_EQ(a[2], 0);
}

TEST(Advantages, AreThoseOfTheResponseOnEachOfItsTrainableTokens) {
  const std::vector<double> rewards = {0, 0, 1};
  const std::vector<uint8_t> trainable = {1, 0, 1};
  EXPECT_EQ(token_advantages({rewards, trainable, {}}, -0.5, {}).advantages_T, (std::vector<double>{-0.5, 0, -0.5}));
  EXPECT_EQ(token_advantages({rewards, {}, {}}, -0.5, {}).advantages_T, (std::vector<double>{-0.5, -0.5, -0.5}));
}

TEST(Advantages, OfReinforcePpAreDiscountedPastTokensThatAreNotTrainable) {
  const std::vector<double> rewards = {0, 0, 1};
  const std::vector<uint8_t> trainable = {1, 0, 1};
  const auto a = token_advantages({rewards, trainable, {}}, 0, {.advantage = Advantage::kReinforcePp, .gamma = 0.5});
  EXPECT_EQ(a.advantages_T, (std::vector<double>{0.5, 0, 1}));
}

TEST(Advantages, ThatAreWhitenedHaveMeanZeroAndVarianceOneOverAllParts) {
  std::vector<double> first = {3, 1, 7}, second = {2, 2};
  const std::vector<uint8_t> marks = {1, 0, 1};
  const std::vector<WhitenedTokens> batch = {{first, marks}, {second, {}}};
  EXPECT_NEAR(whiten(batch, 0), std::sqrt(17.0 / 3), 1e-6) << "of 3, 7, 2 and 2";
  EXPECT_EQ(first[1], 1) << "what is not trainable stays";
  const std::vector<double> all = {first[0], first[2], second[0], second[1]};
  EXPECT_NEAR(std::accumulate(all.begin(), all.end(), 0.0), 0, 1e-6);
  EXPECT_NEAR(std::inner_product(all.begin(), all.end(), all.begin(), 0.0) / 3, 1, 1e-6);
}

TEST(Advantages, OfABatchWithHardlyAnySpreadAreNotBlownUp) {
  std::vector<double> values = {0.5, 0.5, 0.5, 0.5 + 1e-3}, less = values;
  EXPECT_NEAR(whiten(std::vector<WhitenedTokens>{{values, {}}}, 0), 5e-4, 1e-8);
  EXPECT_NEAR(values[3], 1.5, 0.1) << "without a floor a thousandth becomes a unit";
  EXPECT_NEAR(whiten(std::vector<WhitenedTokens>{{less, {}}}, 0.1), 5e-4, 1e-8);
  EXPECT_NEAR(less[3], 7.5e-3, 1e-6);
}

TEST(Advantages, OfScoresWhoseSquaresOverflowAreThoseOfSmallOnes) {
  for (const Advantage advantage : {Advantage::kGrpo, Advantage::kGrpoPassK})
    for (const double factor : {1e150, 1e200, 1e300, 1e307, -1e300}) {
      const Algorithm algorithm{.advantage = advantage, .std_eps = 0};
      const auto small = compare({-1, 3, 2, 2}, {1, 1, 1, 1}, algorithm),
                 large = compare({-factor, 3 * factor, 2 * factor, 2 * factor}, {1, 1, 1, 1}, algorithm);
      for (size_t i = 0; i < small.size() && factor > 0; ++i) EXPECT_NEAR(small[i], large[i], 1e-12) << factor;
      for (const double each : large) EXPECT_TRUE(std::isfinite(each)) << factor;
    }
  std::vector<double> values = {1e200, 3e200, -2e200, 0};
  whiten(std::vector<WhitenedTokens>{{values, {}}}, 0);
  EXPECT_NEAR(values[1], 1.2009, 1e-3);
}

TEST(Advantages, OfGaeGoOnWithTheValueBehindACutAnswer) {
  const std::vector<double> rewards = {0, 0}, values = {0.5, 0.25};
  const Algorithm algorithm{.advantage = Advantage::kGae, .gamma = 0.5, .lambda = 0};
  EXPECT_DOUBLE_EQ(token_advantages({rewards, {}, values, 0.75}, 0, algorithm).returns_T[1], 0.375);
  EXPECT_DOUBLE_EQ(token_advantages({rewards, {}, values}, 0, algorithm).returns_T[1], 0);
}

TEST(Advantages, OfGaePassOverTokensThatAreNotTrainable) {
  const std::vector<double> rewards = {0, 0, 1}, values = {0.5, 100, 0.25};
  const std::vector<uint8_t> trainable = {1, 0, 1};
  const TokenAdvantages a = token_advantages({rewards, trainable, values}, 0, {.advantage = Advantage::kGae, .lambda = 0});
  EXPECT_DOUBLE_EQ(a.returns_T[2], 1);
  EXPECT_DOUBLE_EQ(a.returns_T[0], 0.25) << "the next value is that of the third token";
}

}  // namespace
}  // namespace tandem::algo
