// SPDX-License-Identifier: Apache-2.0
#include "tandem/planner/schedule.h"

#include <gtest/gtest.h>

#include <functional>

#include "schedules.h"
#include "tandem/base/error.h"

namespace tandem::planner {
namespace {

Schedule split_stale() {
  return schedule_for({.placement = placement_of(PlacementKind::kSplit, 2, 2),
                       .staleness = 2,
                       .reference = true,
                       .old_logprob = true,
                       .reward_stage = true});
}

std::string fault_of(const Schedule& schedule) {
  try {
    check(schedule);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

Stage& named(Schedule& schedule, const std::string& name) {
  for (Stage& stage : schedule.stages)
    if (stage.name == name) return stage;
  throw std::logic_error("no stage " + name);
}

int index_of(const Schedule& schedule, const std::string& name) {
  for (size_t i = 0; i < schedule.stages.size(); ++i)
    if (schedule.stages[i].name == name) return static_cast<int>(i);
  throw std::logic_error("no stage " + name);
}

TEST(Schedule, EveryOneThatARunCanHaveIsValid) {
  for (const ScheduleNeeds& needs : test::all_needs()) EXPECT_NO_THROW(check(schedule_for(needs)));
}

// Every schedule that a run can have without one of its edges, changed further by `change`, is refused. Returns how many there were.
int refused_without_an_edge(const std::function<void(Schedule&, int stage, const After& edge)>& change) {
  int changed = 0;
  for (const ScheduleNeeds& needs : test::all_needs()) {
    const Schedule whole = schedule_for(needs);
    for (size_t s = 0; s < whole.stages.size(); ++s)
      for (size_t e = 0; e < whole.stages[s].after.size(); ++e, ++changed) {
        Schedule cut = whole;
        cut.stages[s].after.erase(cut.stages[s].after.begin() + static_cast<std::ptrdiff_t>(e));
        change(cut, static_cast<int>(s), whole.stages[s].after[e]);
        EXPECT_NE(fault_of(cut), "") << to_text(whole) << ": " << whole.stages[s].name << ", edge " << e;
      }
  }
  return changed;
}

TEST(Schedule, ARemovedEdgeIsCaught) {
  EXPECT_GT(refused_without_an_edge([](Schedule&, int, const After&) {}), 1000);
}

TEST(Schedule, AReversedEdgeIsCaught) {
  const auto reverse = [](Schedule& schedule, int stage, const After& edge) {
    schedule.stages[static_cast<size_t>(edge.stage)].after.push_back({stage, edge.steps_back});
  };
  EXPECT_GT(refused_without_an_edge(reverse), 1000);
}

TEST(Schedule, ACycleIsNamed) {
  Schedule s = split_stale();
  named(s, "advantage").after.push_back({index_of(s, "train")});
  EXPECT_NE(fault_of(s).find("cycle advantage after train after advantage"), std::string::npos) << fault_of(s);
  Schedule whole_step = split_stale();
  named(whole_step, "rollout").after[0].steps_back = 0;
  EXPECT_NE(fault_of(whole_step).find("cycle rollout after switch after meet after train after "), std::string::npos)
      << fault_of(whole_step);
}

TEST(Schedule, WhatReadsWhatNobodyFillsStarves) {
  Schedule s = split_stale();
  named(s, "reward").fills.clear();
  EXPECT_NE(fault_of(s).find("advantage starves: it reads scores, and no stage fills them"), std::string::npos) << fault_of(s);
}

// Advantages wait for what they are made of; the actor's update and the critic's wait for them.
TEST(Schedule, AdvantagesWaitForValuesAndForLogprobsThatAreRewards) {
  const Schedule s = schedule_for({.placement = placement_of(PlacementKind::kColocated, 2, 2),
                                   .reference = true,
                                   .rewards_read_logprobs = true,
                                   .old_logprob = true,
                                   .critic = true});
  EXPECT_EQ(to_text(s), "sync (staleness 0): actor.rollout reference.reference actor.old_logprob critic.values actor.advantage "
                        "critic.train_critic actor.train actor.meet actor.switch");
  for (const char* edge : {"reference", "old_logprob", "values"}) {
    Schedule cut = s;
    auto& after = named(cut, "advantage").after;
    const int stage = index_of(cut, edge);
    EXPECT_EQ(std::erase_if(after, [&](const After& a) { return a.stage == stage; }), 1u) << edge;
    EXPECT_NE(fault_of(cut).find("advantage starves"), std::string::npos) << edge << ": " << fault_of(cut);
  }
}

TEST(Schedule, RolloutMayNotRunFurtherAheadThanTheStalenessSays) {
  Schedule s = split_stale();
  named(s, "rollout").after[0].steps_back = 3;
  EXPECT_EQ(fault_of(s), "");
  named(s, "rollout").after[0].steps_back = 4;
  EXPECT_NE(fault_of(s).find("rollout may run 3 versions ahead, and the staleness is 2"), std::string::npos) << fault_of(s);
}

TEST(Schedule, ARepeatEndsBeforeTheUpdateAndAllItsRanksHearOfIt) {
  const Schedule good = schedule_for({.placement = placement_of(PlacementKind::kFullyColocated, 2, 2),
                                   .staleness = 1,
                                   .reference = true,
                                   .reward_stage = true,
                                   .most_rounds = 4});
  ASSERT_TRUE(good.repeat);
  EXPECT_EQ(good.stages[static_cast<size_t>(good.repeat->last)].kind, StageKind::kReward);
  Schedule s = good;
  s.repeat->last = index_of(s, "train");
  EXPECT_NE(fault_of(s).find("repeats train, and a batch is trained once"), std::string::npos) << fault_of(s);
  s = good;
  s.stages[static_cast<size_t>(s.repeat->first)].ranks.count = 1;
  EXPECT_NE(fault_of(s).find("which have other ranks"), std::string::npos) << fault_of(s);
  s = good;
  s.repeat->most = 0;
  EXPECT_NE(fault_of(s).find("repeats reward 0 times"), std::string::npos) << fault_of(s);
  s = good;
  s.repeat->first = s.repeat->last + 1;
  EXPECT_NE(fault_of(s).find("repeats what are no stages"), std::string::npos) << fault_of(s);
  for (const ScheduleNeeds& needs : test::all_needs()) {
    ScheduleNeeds more = needs;
    more.most_rounds = 9;
    EXPECT_FALSE(schedule_for(needs).repeat);
    EXPECT_EQ(schedule_for(more).repeat.has_value(), needs.reward_stage && !needs.replay);
  }
}

TEST(Schedule, AtStalenessZeroNothingRunsAhead) {
  Schedule s = split_stale();
  s.staleness = 0;
  EXPECT_NE(fault_of(s).find("at staleness 0 nothing may be generated ahead"), std::string::npos) << fault_of(s);
}

TEST(Schedule, AnEdgeBetweenRanksThatNeverMeetIsRefused) {
  Schedule s = split_stale();
  named(s, "ahead").after.push_back({index_of(s, "reference")});
  EXPECT_NE(fault_of(s).find("ahead comes after reference, and none of its ranks hears"), std::string::npos) << fault_of(s);
}

TEST(Schedule, OnlyRanksThatNeverTrainGenerateWhileOthersDo) {
  for (const ScheduleNeeds& needs : test::all_needs()) {
    const bool ahead = needs.placement.has_sides() && needs.staleness > 0 && !needs.replay;
    EXPECT_EQ(schedule_for(needs).has(StageKind::kAhead), ahead);
  }
}

}  // namespace
}  // namespace tandem::planner
