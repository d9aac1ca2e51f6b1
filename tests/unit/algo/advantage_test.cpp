// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/advantage.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tandem::algo {
namespace {

TEST(GroupAdvantages, CompareAResponseWithItsGroupOnly) {
  const std::vector<double> scores = {1, 100, 3, 300};
  const std::vector<int64_t> groups = {7, 9, 7, 9};
  const auto a = group_advantages(scores, groups, {.std_eps = 0});
  EXPECT_DOUBLE_EQ(a[0], -std::sqrt(0.5));
  EXPECT_DOUBLE_EQ(a[2], std::sqrt(0.5));
  EXPECT_DOUBLE_EQ(a[3], a[2]) << "the scale of the scores does not matter";
}

TEST(GroupAdvantages, OfDrGrpoKeepTheScale) {
  const auto a = group_advantages(std::vector<double>{0, 1, 1, 1}, std::vector<int64_t>{0, 0, 0, 0}, {.advantage = Advantage::kDrGrpo});
  EXPECT_EQ(a, (std::vector<double>{-0.75, 0.25, 0.25, 0.25}));
}

TEST(GroupAdvantages, OfEqualScoresAreZero) {
  for (double a : group_advantages(std::vector<double>{0.3, 0.3, 0.3}, std::vector<int64_t>{1, 1, 1}, {})) EXPECT_NEAR(a, 0, 1e-9);
}

}  // namespace
}  // namespace tandem::algo
