// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/scorer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "tandem/base/error.h"

namespace tandem::reward {
namespace {

data::Group group_of(int64_t id, std::vector<std::string> responses) {
  data::Group group;
  group.id = GroupId{id};
  group.prompt.answer = "7";
  for (std::string& response : responses) {
    data::Sample sample;
    sample.text = std::move(response);
    group.samples.push_back(std::move(sample));
  }
  return group;
}

TEST(Scorer, GroupsComeBackScoredAndInOrder) {
  const FunctionRule slow_first("slow", [](const Answer& a) {
    if (a.response == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return Score{a.response == a.gold ? 1.0 : 0.0, {}, ""};
  });
  Scorer scorer(slow_first, {3});
  for (int64_t id = 0; id < 50; ++id) scorer.submit(group_of(id, {id % 10 == 0 ? "slow" : "7", "8"}));
  std::vector<data::Group> groups;
  while (auto next = scorer.collect(Deadline::after_s(20))) groups.push_back(std::move(*next));
  ASSERT_EQ(groups.size(), 50u);
  for (int64_t id = 0; id < 50; ++id) {
    const data::Group& group = groups[static_cast<size_t>(id)];
    EXPECT_EQ(value(group.id), id);
    EXPECT_TRUE(group.samples[1].scored);
    EXPECT_EQ(group.samples[0].score, id % 10 == 0 ? 0 : 1);
    EXPECT_EQ(group.samples[0].parts.at(0).first, "slow");
  }
  EXPECT_EQ(scorer.num_pending(), 0u);
  EXPECT_FALSE(scorer.collect(Deadline::after_s(1)));
}

TEST(Scorer, ARuleThatThrowsIsNamedAndLosesNothing) {
  const FunctionRule moody("moody", [](const Answer& a) -> Score {
    if (a.response == "bad") throw std::runtime_error("no mood");
    return {1, {}, ""};
  });
  Scorer scorer(moody, {2});
  scorer.submit(group_of(1, {"good"}));
  scorer.submit(group_of(2, {"good", "bad"}));
  scorer.submit(group_of(3, {"good"}));
  EXPECT_EQ(value(scorer.collect(Deadline::after_s(5))->id), 1);
  try {
    scorer.collect(Deadline::after_s(5));
    FAIL();
  } catch (const UserError& e) {
    EXPECT_STREQ(e.what(), "reward rule moody, group 2: grading failed: no mood (expected a rule that gives every answer a score)");
  }
  const auto ungraded = scorer.collect(Deadline::after_s(5));
  ASSERT_TRUE(ungraded);
  EXPECT_EQ(value(ungraded->id), 2);
  EXPECT_FALSE(ungraded->samples[0].scored);
  EXPECT_EQ(value(scorer.collect(Deadline::after_s(5))->id), 3);
}

TEST(Scorer, AGreedyAnswerIsGradedByItself) {
  const Rule batches("batches", {}, [](std::span<const Answer> answers) {
    return std::vector<Score>(answers.size(), Score{static_cast<double>(answers.size()), {}, ""});
  });
  data::Group group = group_of(1, {"a", "b", "c"});
  group.greedy.emplace().text = "d";
  score_group(batches, group);
  EXPECT_EQ(group.samples[2].score, 3) << "a rule may compare the samples of a group";
  EXPECT_EQ(group.greedy->score, 1);
  EXPECT_TRUE(group.greedy->scored);
}

TEST(Scorer, WaitingEndsAtTheDeadlineAndTheEndJoins) {
  const FunctionRule sleepy("sleepy", [](const Answer&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return Score{};
  });
  Scorer scorer(sleepy, {1});
  scorer.submit(group_of(1, {"a"}));
  EXPECT_FALSE(scorer.collect(Deadline::after_s(0.01)));
  EXPECT_EQ(scorer.num_pending(), 1u);
}

TEST(Scorer, AScoreThatIsNotFiniteIsAFailure) {
  const FunctionRule odd("odd", [](const Answer& a) { return Score{std::stod(a.response), {}, ""}; });
  for (const char* score : {"nan", "inf", "-inf"}) {
    Scorer scorer(odd);
    scorer.submit(group_of(1, {"1", score}));
    EXPECT_THROW(scorer.collect(Deadline::after_s(5)), UserError) << score;
  }
}

TEST(Scorer, WhatCannotBeGradedMayScoreZeroAndTheOthersKeepTheirs) {
  const FunctionRule moody("moody", [](const Answer& a) -> Score {
    if (a.response == "user") throw UserError("here", "is wrong", "right");
    if (a.response == "nan") return {std::nan(""), {}, ""};
    return {1, {}, ""};
  });
  Scorer scorer(moody, {2, true});
  scorer.submit(group_of(1, {"good", "user", "nan", "good"}));
  const auto group = scorer.collect(Deadline::after_s(5));
  ASSERT_TRUE(group);
  for (size_t i = 0; i < 4; ++i) {
    const data::Sample& sample = group->samples[i];
    const bool fails = i == 1 || i == 2;
    EXPECT_TRUE(sample.scored);
    EXPECT_EQ(sample.score, fails ? 0 : 1) << i;
    EXPECT_EQ(sample.parts.at(0).first, fails ? kFailedPart : "moody") << i;
  }
}

TEST(Scorer, AServerThatDoesNotAnswerIsAskedOnceForAGroup) {
  int asked = 0;
  const Rule dead("dead", {}, [&](std::span<const Answer>) -> std::vector<Score> {
    ++asked;
    throw PeerError("no answer");
  });
  data::Group group = group_of(1, {"a", "b", "c"});
  EXPECT_EQ(score_group_or_zero(dead, group), "no answer");
  EXPECT_EQ(asked, 1);
  for (const data::Sample& sample : group.samples) EXPECT_EQ(sample.parts.at(0).first, kFailedPart);
}

}  // namespace
}  // namespace tandem::reward
