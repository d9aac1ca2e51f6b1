// SPDX-License-Identifier: Apache-2.0
#include "tandem/fit/choose.h"

#include <gtest/gtest.h>

#include "tandem/base/error.h"
#include "tests/error_text.h"

namespace tandem::fit {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// 1 KiB a token of a pass and of the cache; rows of 1000 tokens, 64 sequences.
Measured measured(int64_t budget_mib, int64_t held_mib = 100) {
  Measured m;
  m.budget_bytes = budget_mib * kMiB;
  m.budget_from = "a test";
  m.held_bytes = m.held_rolling_bytes = held_mib * kMiB;
  m.train = {0, 64.0 * 1024};
  m.score = {0, 8.0 * 1024};
  m.decode = {0, 1024.0};
  m.kv_token_bytes = 1024;
  m.context_tokens = 1000;
  m.sequences = 64;
  m.tokens = 64000;
  return m;
}

std::vector<Decision> chosen(const Measured& m, const std::vector<std::string>& given = {}, const config::RunConfig& c = {}) {
  return choose(m, c, given);
}

TEST(Choose, WhereAllFitsTheDefaultsStay) {
  const auto d = chosen(measured(100000));
  EXPECT_EQ(value_of(d, "train.micro_batch_tokens"), 8192);
  EXPECT_EQ(value_of(d, "train.logprob_micro_batch_tokens"), 16384);
  EXPECT_EQ(value_of(d, "train.reference_micro_batch_tokens"), 16384);
  EXPECT_EQ(value_of(d, "rollout.kv_cache_mib"), 65) << "65 sequences of 1016 tokens of 1 KiB";
  EXPECT_EQ(value_of(d, "rollout.max_running"), 64);
}

// 8 sequences take 7.9 MiB; a pass of 4096 tokens 256 MiB, of 8192 512 MiB.
TEST(Choose, APassIsHalvedUntilTheCacheHasRoom) {
  EXPECT_EQ(value_of(chosen(measured(100 + 512 + 8)), "train.micro_batch_tokens"), 8192);
  EXPECT_EQ(value_of(chosen(measured(100 + 512 + 7)), "train.micro_batch_tokens"), 4096);
  const auto d = chosen(measured(100 + 128 + 20));
  EXPECT_EQ(value_of(d, "train.micro_batch_tokens"), 2048);
  EXPECT_EQ(value_of(d, "supervised.micro_batch_tokens"), 2048);
  EXPECT_EQ(value_of(d, "rollout.kv_cache_mib"), 20);
  EXPECT_EQ(value_of(d, "rollout.max_running"), 20);
  EXPECT_EQ(value_of(d, "train.logprob_micro_batch_tokens"), 16384) << "128 MiB of the 128 that the cache leaves";
}

TEST(Choose, WhatTheChosenTakesIsWithinTheBudget) {
  for (int64_t budget = 170; budget < 2000; budget += 37) {
    const Measured m = measured(budget);
    const auto d = chosen(m);
    const int64_t cache = value_of(d, "rollout.kv_cache_mib") * kMiB;
    EXPECT_LE(m.held_bytes + m.train.at(value_of(d, "train.micro_batch_tokens")) + cache, m.budget_bytes) << budget;
    EXPECT_LE(m.held_bytes + m.score.at(value_of(d, "train.logprob_micro_batch_tokens")) + cache, m.budget_bytes) << budget;
    EXPECT_GE(value_of(d, "train.micro_batch_tokens"), 1000) << budget;
  }
}

TEST(Choose, TheCacheHoldsTheLongestSequenceOfAnEvaluation) {
  Measured m = measured(100 + 512 + 100);
  m.sequences = 2;
  m.eval_tokens = 30000;
  EXPECT_EQ(value_of(chosen(m), "rollout.kv_cache_mib"), 30);
  m.budget_bytes = (100 + 64 + 20) * kMiB;
  EXPECT_THROW(chosen(m), UserError);
}

TEST(Choose, ACacheThatLeavesDoesNotShareWithPasses) {
  Measured m = measured(100 + 512);
  m.cache_leaves = true;
  const auto d = chosen(m);
  EXPECT_EQ(value_of(d, "train.micro_batch_tokens"), 8192);
  EXPECT_EQ(value_of(d, "rollout.kv_cache_mib"), 65);
}

TEST(Choose, AValueOfTheUsersStays) {
  config::RunConfig c;
  c.train.micro_batch_tokens = 512;
  c.rollout.engine.kv_cache_mib = 3;
  c.rollout.engine.max_running = 7;
  const std::vector<std::string> given = {"rollout.kv_cache_mib", "rollout.max_running", "train.micro_batch_tokens"};
  const auto d = chosen(measured(100000), given, c);
  EXPECT_EQ(value_of(d, "train.micro_batch_tokens"), 512);
  EXPECT_EQ(value_of(d, "rollout.kv_cache_mib"), 3);
  EXPECT_EQ(value_of(d, "rollout.max_running"), 7);
  EXPECT_EQ(d.front().because, "set by the user, and left so");
  const config::RunConfig out = with_decisions(c, d);
  EXPECT_EQ(out.train.micro_batch_tokens, 512);
  EXPECT_EQ(out.train.logprob_micro_batch_tokens, 16384);
}

TEST(Choose, SmallWorkGetsSmallSizes) {
  Measured m = measured(100000);
  m.tokens = 3000;
  m.sequences = 3;
  const auto d = chosen(m);
  EXPECT_EQ(value_of(d, "train.micro_batch_tokens"), 4096);
  EXPECT_EQ(value_of(d, "supervised.micro_batch_tokens"), 8192) << "a warm start has batches of its own";
  EXPECT_EQ(value_of(d, "rollout.max_running"), 3);
  EXPECT_EQ(value_of(d, "rollout.kv_cache_mib"), 4);
}

// A row of 1000 tokens takes 62.5 MiB, its cache 1.
TEST(Choose, WhereOneRowDoesNotFitTheErrorSaysWhatWould) {
  EXPECT_NO_THROW(chosen(measured(100 + 65)));
  const std::string error = test::error_of<UserError>([] { chosen(measured(100 + 62)); });
  for (const char* part : {"--fit", "a test", "104.9 MB", "train.recompute"}) EXPECT_NE(error.find(part), std::string::npos) << error;
}

// As measured(), with a critic whose passes take twice as much as the actor's.
Measured beside_critic(int64_t budget_mib) {
  Measured m = measured(budget_mib);
  m.value_train = {0, 128.0 * 1024};
  m.values = {0, 4.0 * 1024};
  return m;
}

config::RunConfig ppo() {
  config::RunConfig c;
  c.algo.advantage = "gae";
  return c;
}

TEST(Choose, ACriticHasPassesOfItsOwn) {
  const auto d = chosen(beside_critic(100 + 512 + 8), {}, ppo());
  EXPECT_EQ(value_of(d, "train.micro_batch_tokens"), 8192);
  EXPECT_EQ(value_of(d, "critic.micro_batch_tokens"), 4096) << "8192 would take 1 GiB";
  EXPECT_EQ(value_of(d, "critic.value_micro_batch_tokens"), 16384);
  const config::RunConfig c = with_decisions(ppo(), d);
  EXPECT_EQ(c.critic.train.micro_batch_tokens, 4096);
  EXPECT_EQ(c.critic.value_micro_batch_tokens, 16384);
  EXPECT_EQ(undecided({}).size() + 2, undecided(ppo()).size()) << "other algorithms have no critic";
}

// A row of 1000 tokens takes the actor 62.5 MiB and the critic 125, its cache 1.
TEST(Choose, TheCacheIsWhatTheLargerOfBothPassesLeaves) {
  const auto d = chosen(beside_critic(100 + 512 + 40), {"train.micro_batch_tokens", "critic.micro_batch_tokens"}, [] {
    config::RunConfig c = ppo();
    c.train.micro_batch_tokens = c.critic.train.micro_batch_tokens = 4096;
    return c;
  }());
  EXPECT_EQ(value_of(d, "rollout.kv_cache_mib"), 40) << "the critic's pass takes 512 MiB, the actor's 256";
  EXPECT_NO_THROW(chosen(beside_critic(100 + 130), {}, ppo()));
  const std::string error = test::error_of<UserError>([] { chosen(beside_critic(100 + 120), {}, ppo()); });
  EXPECT_NE(error.find("the critic's training"), std::string::npos) << error;
}

TEST(Choose, TheCacheIsRoundedToThreeDigits) {
  Measured m = measured(100 + 512 + 437);
  m.sequences = 1000;
  EXPECT_EQ(value_of(chosen(m), "rollout.kv_cache_mib"), 384);
  m.budget_bytes += 12 * kMiB;
  EXPECT_EQ(value_of(chosen(m), "rollout.kv_cache_mib"), 448);
}

TEST(Choose, TheLineThroughTwoPassesNeverFalls) {
  const PassBytes line = through(100, 1100, 300, 3100);
  EXPECT_EQ(line.at(0), 100);
  EXPECT_EQ(line.at(1000), 10100);
  EXPECT_EQ(through(100, 500, 200, 400).at(1000), 500);
  EXPECT_EQ(through(100, 100, 200, 300).at(0), 0) << "less than nothing is taken by none";
}

TEST(Choose, TheFewestOfTheFastestRun) {
  EXPECT_EQ(running_candidates(64), (std::vector<int64_t>{64, 32, 16}));
  EXPECT_EQ(running_candidates(2), (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(quickest({64, 32, 16}, {1000, 960, 900}), 32);
  EXPECT_EQ(quickest({64, 32, 16}, {1000, 500, 999}), 16);
  EXPECT_EQ(quickest({1}, {0}), 1);
}

TEST(Choose, TheTableNamesEveryOption) {
  const auto lines = table(chosen(measured(100 + 128 + 20)));
  ASSERT_EQ(lines.size(), 7);
  EXPECT_NE(lines[1].find("train.micro_batch_tokens"), std::string::npos);
  EXPECT_NE(lines[1].find("4096 would take 268"), std::string::npos) << lines[1];
}

}  // namespace
}  // namespace tandem::fit
