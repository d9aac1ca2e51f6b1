// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/start_skew.h"

#include <gtest/gtest.h>

#include "tandem/comm/launch.h"

namespace tandem::comm {
namespace {

constexpr double kSkewDeadlineS = 60;

TEST(StartSkew, ClocksThatDifferAreBroughtTogether) {
  run_local(3, kSkewDeadlineS, [](Group& world) {
    const double ahead_s = 1000.0 * world.rank();
    const double offset_s = measured_clock_offset_s(world, [&] { return now_s() + ahead_s; });
    EXPECT_NEAR(offset_s, -ahead_s, 0.5) << "of rank " << world.rank();
    EXPECT_EQ(clock_offset_s(world), 0) << "threads share their clock";
  });
}

TEST(StartSkew, IsTheTimeBetweenTheFirstAndTheLastRankByStage) {
  run_local(3, kSkewDeadlineS, [](Group& world) {
    const std::vector<double> rollout_s = {5.0, 5.25, 4.5}, train_s = {7.0, 7.0, 7.125};
    const auto me = static_cast<size_t>(world.rank());
    StartSkew skew(world);
    for (int step = 0; step < 2; ++step) {
      skew.starts("rollout", rollout_s[me] + step);
      skew.starts("train", step == 0 ? train_s[me] : 8.0);
      std::map<std::string, double> metrics = skew.take_metrics();
      EXPECT_EQ(metrics["time/start_skew_rollout_s"], 0.75);
      EXPECT_EQ(metrics["time/start_skew_train_s"], step == 0 ? 0.125 : 0);
      EXPECT_EQ(metrics["time/start_skew_s"], 0.75);
    }
  });
}

}  // namespace
}  // namespace tandem::comm
