// SPDX-License-Identifier: Apache-2.0
#include "tandem/data/decisions.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tandem/base/error.h"

namespace tandem::data {
namespace {

namespace fs = std::filesystem;

class DecisionsTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  DecisionReader read(const std::string& text) {
    std::ofstream(folder_ / "decisions.jsonl") << text;
    return DecisionReader(folder_.string());
  }
  std::string fault_of(const std::string& text) {
    try {
      (void)read(text);
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  }
  const fs::path folder_ = fs::temp_directory_path() / ("tandem_decisions_test_" + std::to_string(::getpid()));
};

Decisions of_step(int64_t step) {
  Decisions d;
  d.step = StepId{step};
  d.groups = {GroupId{2 * step}, GroupId{2 * step + 1}};
  d.started = {0, 1};
  return d;
}

TEST(Effects, ComeBackFromTheirText) {
  using enum Effect::Kind;
  const std::vector<Effect> effects = {{kSwitch, 3}, {kAdmit, 3}, {kAdmit, 3}, {kStand, 60}, {kCancel, 1000}};
  EXPECT_EQ(to_text(effects), "s3a0a0p57c940");
  EXPECT_EQ(effects_of(to_text(effects)), effects);
  EXPECT_TRUE(effects_of("").empty());
  for (const char* wrong : {"x3", "a", "a-1", "a1 s2", "3", "a99999999999999999999"}) EXPECT_THROW(effects_of(wrong), UserError) << wrong;
}

TEST_F(DecisionsTest, AreReadAsTheyWereWritten) {
  Decisions second = of_step(2);
  second.waiting = {{GroupId{9}, PolicyVersion{1}}};
  second.moved = {{GroupId{7}, 1}};
  second.dropped = {GroupId{3}};
  second.filtered = {GroupId{6}};
  second.early = {{{GroupId{4}}, {}}, {{}, {GroupId{5}}}};
  const DecisionReader reader = read(begun_line("train dp2", 40) + to_line(of_step(1), {"s0a0", "s0"}) + to_line(StepId{1}, {"", "a4"}) +
                                     to_line(second, {"s5", ""}) +
                                     resumed_line(StepId{2}) + to_line(of_step(3), {"s0", "s0"}));
  EXPECT_EQ(reader.num_steps(), 2) << "what follows a resume is of other streams";
  EXPECT_EQ(reader.of(StepId{1}).groups, of_step(1).groups);
  const Decisions& d = reader.of(StepId{2});
  EXPECT_EQ(d.started, second.started);
  EXPECT_EQ(d.moved, second.moved);
  EXPECT_EQ(d.dropped, second.dropped);
  EXPECT_EQ(d.filtered, second.filtered);
  EXPECT_EQ(d.early, second.early);
  EXPECT_EQ(reader.layouts(), "train dp2");
  EXPECT_EQ(reader.lr_steps(), 40);
  ASSERT_EQ(d.waiting.size(), 1u);
  EXPECT_EQ(d.waiting[0].id, GroupId{9});
  EXPECT_EQ(d.waiting[0].version, PolicyVersion{1});
  EXPECT_TRUE(reader.is_dropped(GroupId{3}));
  EXPECT_FALSE(reader.is_dropped(GroupId{6}));
  EXPECT_EQ(to_text(reader.effects()[0]), "s0a0s5");
  EXPECT_EQ(to_text(reader.effects()[1]), "s0a4");
}

// It was finished, so a repetition has it finished, too, makes its pass, and drops it by the same rule.
TEST_F(DecisionsTest, AGroupWithAnEarlyPassMayBePutThoughItWasDropped) {
  Decisions first = of_step(1), second = of_step(2);
  first.early = {{{GroupId{7}}}};
  second.dropped = {GroupId{7}, GroupId{8}};
  const DecisionReader reader = read(to_line(first, {"s0", "s0"}) + to_line(second, {"", ""}));
  const DecisionLog follows(&reader);
  EXPECT_TRUE(follows.may_be_put(GroupId{7}));
  EXPECT_FALSE(follows.may_be_put(GroupId{8}));
}

TEST_F(DecisionsTest, WhatNoRunWroteIsRefusedWithItsLine) {
  const std::string first = to_line(of_step(1), {"s0", "s0"});
  EXPECT_NE(fault_of(first + "{\"step\":2").find("line 2 is damaged"), std::string::npos);
  EXPECT_NE(fault_of(first + "[]\n").find("line 2 is damaged"), std::string::npos);
  EXPECT_NE(fault_of(first + to_line(of_step(3), {"", ""})).find("step 3 comes after step 1"), std::string::npos);
  EXPECT_NE(fault_of(first + to_line(of_step(2), {""})).find("tells of 1 replicas"), std::string::npos);
  EXPECT_NE(fault_of(first + to_line(of_step(2), {"q1", ""})).find("line 2: "), std::string::npos);
  Decisions wrong = of_step(2);
  wrong.started = {2};
  EXPECT_NE(fault_of(first + to_line(wrong, {"", ""})).find("starts on a replica that there is not"), std::string::npos);
  wrong = of_step(2);
  wrong.moved = {{GroupId{1}, -1}};
  EXPECT_NE(fault_of(first + to_line(wrong, {"", ""})).find("moves to a replica that there is not"), std::string::npos);
  wrong = of_step(2);
  wrong.started_before = 3;
  EXPECT_NE(fault_of(first + to_line(wrong, {"", ""})).find("more came before the batch"), std::string::npos);
  wrong = of_step(2);
  wrong.groups = {GroupId{4}, GroupId{4}};
  EXPECT_NE(fault_of(first + to_line(wrong, {"", ""})).find("not in order"), std::string::npos);
  fs::remove(folder_ / "decisions.jsonl");
  EXPECT_THROW(DecisionReader(folder_.string()), UserError);
}

TEST_F(DecisionsTest, ALogThatFollowsDecidesAsTheOneBefore) {
  DecisionLog log(nullptr);
  const auto decide = [](DecisionLog& l) {
    l.started(l.home_of_next(0));
    l.filtered(GroupId{5});
    const EarlyGroups early = l.early({{GroupId{2}}}, std::vector<GroupId>{GroupId{2}});
    EXPECT_EQ(early, (EarlyGroups{{GroupId{2}}}));
    l.passed_early(early);
    Batch batch;
    for (const int64_t id : {2, 3}) batch.groups.push_back({GroupId{id}, {}, {}, {}});
    l.took(batch);
    l.started(0);
    l.committed(StepId{1}, l.waiting({{GroupId{9}, PolicyVersion{0}}}), {GroupId{4}});
  };
  EXPECT_EQ(log.num_to_start(3), 3);
  decide(log);
  const std::string line = log.take_lines({"a3"});
  EXPECT_EQ(log.take_lines({""}), "") << "nothing happened since";
  EXPECT_EQ(log.take_lines({"s1"}), to_line(StepId{1}, {"s1"}));
  const DecisionReader reader = read(line);
  DecisionLog follows(&reader);
  EXPECT_EQ(follows.num_to_start(3), 1) << "one started before the batch was taken";
  EXPECT_EQ(follows.num_to_start(0), 0) << "and the rule still counts";
  EXPECT_TRUE(follows.is_done_ahead()) << "the batch is not taken";
  EXPECT_EQ(follows.home_of_next(1), 0);
  EXPECT_FALSE(follows.may_be_put(GroupId{4})) << "it was dropped";
  EXPECT_TRUE(follows.may_be_put(GroupId{2}));
  follows.started(0);
  EXPECT_FALSE(follows.is_done_before_batch()) << "a group is to be filtered";
  follows.filtered(GroupId{5});
  EXPECT_FALSE(follows.is_done_before_batch()) << "a group is to have an early pass";
  const std::vector<GroupId> other = {GroupId{3}}, both = {GroupId{2}, GroupId{3}};
  EXPECT_TRUE(follows.early({{GroupId{3}}}, other).empty()) << "and it is not finished";
  EXPECT_EQ(follows.early({{GroupId{3}}}, both), (EarlyGroups{{GroupId{2}}}));
  follows.passed_early({{GroupId{2}}});
  EXPECT_TRUE(follows.early({{GroupId{3}}}, both).empty()) << "that run made one";
  EXPECT_TRUE(follows.is_done_before_batch());
  EXPECT_EQ(follows.num_to_start(3), 0) << "the other started later";
  follows.took(Batch());
  EXPECT_EQ(follows.num_to_start(3), 1);
  EXPECT_FALSE(follows.is_done_ahead());
  follows.started(0);
  EXPECT_TRUE(follows.is_done_ahead());
  EXPECT_EQ(follows.waiting({}).size(), 1u) << "as that run was told";
  EXPECT_THROW(follows.committed(StepId{1}, {}, {}), UserError) << "nothing is dropped here";
}

}  // namespace
}  // namespace tandem::data
