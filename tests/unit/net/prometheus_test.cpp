// SPDX-License-Identifier: Apache-2.0
#include "tandem/net/prometheus.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tandem::net {
namespace {

// Expected texts are written by hand after https://prometheus.io/docs/instrumenting/exposition_formats/
TEST(Prometheus, ANameKeepsItsLettersAndDigitsAlone) {
  EXPECT_EQ(prometheus_name("throughput/tokens_per_s"), "tandem_throughput_tokens_per_s");
  EXPECT_EQ(prometheus_name("reward/a-b c.9:\xc3\xa9"), "tandem_reward_a_b_c_9___");
  EXPECT_EQ(prometheus_name("step"), "tandem_step");
}

TEST(Prometheus, EachMetricIsAGaugeWithItsOwnNameInTheHelp) {
  EXPECT_EQ(exposition({}), "");
  EXPECT_EQ(exposition({{"reward/mean", 0.5}, {"step", 12}}),
            "# HELP tandem_reward_mean reward/mean of the newest step\n# TYPE tandem_reward_mean gauge\ntandem_reward_mean 0.5\n"
            "# HELP tandem_step step of the newest step\n# TYPE tandem_step gauge\ntandem_step 12\n");
}

TEST(Prometheus, MetricsThatShareANameAreOneGaugeWithALabel) {
  EXPECT_EQ(exposition({{"reward/a\"b\\", 1}, {"reward/a_b\n", 2}}),
            "# HELP tandem_reward_a_b_ reward/a\"b\\\\, reward/a_b\\n of the newest step\n# TYPE tandem_reward_a_b_ gauge\n"
            "tandem_reward_a_b_{metric=\"reward/a\\\"b\\\\\"} 1\ntandem_reward_a_b_{metric=\"reward/a_b\\n\"} 2\n");
}

TEST(Prometheus, NumbersReadBackToTheLastBit) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::string text = exposition({{"a", 0.1 + 0.2}, {"b", 1e-300}, {"c", kInfinity}, {"d", -kInfinity}, {"e", std::nan("")}});
  for (const char* line : {"\ntandem_a 0.30000000000000004\n", "\ntandem_b 1e-300\n", "\ntandem_c +Inf\n", "\ntandem_d -Inf\n",
                           "\ntandem_e NaN\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line;
}

}  // namespace
}  // namespace tandem::net
