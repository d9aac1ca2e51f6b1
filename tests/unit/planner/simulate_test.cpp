// SPDX-License-Identifier: Apache-2.0
#include "tandem/planner/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tandem/base/error.h"
#include "tandem/planner/homes.h"

namespace tandem::planner {
namespace {

constexpr double kToken_s = 0.01, kTrain_s = 0.5;

Costs costs() {
  return {[](int64_t) { return kToken_s; }, {{"train", kTrain_s}}};
}

Workload workload(int64_t staleness, std::vector<int64_t> lengths, int64_t groups_per_step = 1) {
  return {{.groups_per_step = groups_per_step, .staleness = staleness, .policy = queue::LagPolicy::kWait}, 1, std::move(lengths), 8};
}

Placement placement(PlacementKind kind) {
  return placement_of(kind, kind == PlacementKind::kColocated ? 2 : 1, kind == PlacementKind::kSplit ? 1 : 2);
}

// On two ranks, with a replica on each that generates.
Simulated simulated(PlacementKind kind, const Workload& w, const Costs& costs, bool is_free = true) {
  Replicas replicas{placement(kind), {}, is_free && kind != PlacementKind::kColocated && w.rule.staleness > 0};
  replicas.layout.dp = replicas.placement.rollout.count;
  return simulate(schedule_for({.placement = replicas.placement, .staleness = w.rule.staleness}), w, replicas, costs, {60, 48});
}

TEST(Simulate, WithoutStalenessAStepIsItsStagesOneAfterTheOther) {
  for (const PlacementKind kind : {PlacementKind::kColocated, PlacementKind::kSplit, PlacementKind::kMixed}) {
    const Simulated s = simulated(kind, workload(0, {64, 32}, 2), costs());
    EXPECT_NEAR(s.step_s, 64 * kToken_s + kTrain_s, 1e-9);
    EXPECT_NEAR(s.generating_share[0], 64 * kToken_s / s.step_s, 1e-9);
  }
}

// A group starts when the one before the last is trained: two steps take its tokens and its training.
TEST(Simulate, AStreamOverlapsTrainingAsFarAsTheRuleLetsIt) {
  EXPECT_NEAR(simulated(PlacementKind::kSplit, workload(1, {64}), costs()).step_s, (64 * kToken_s + kTrain_s) / 2, kToken_s);
  EXPECT_NEAR(simulated(PlacementKind::kSplit, workload(4, {64}), costs()).step_s, kTrain_s, 1e-9) << "training never waits";
}

TEST(Simulate, InTurnsALongAnswerGoesOnInTheNextSteps) {
  const std::vector<int64_t> lengths = {8, 8, 8, 200};
  const Simulated sync = simulated(PlacementKind::kColocated, workload(0, lengths, 4), costs());
  EXPECT_NEAR(sync.step_s, 200 * kToken_s + kTrain_s, 64 * kToken_s);
  EXPECT_LT(simulated(PlacementKind::kColocated, workload(2, lengths, 4), costs()).step_s, 0.6 * sync.step_s);
}

TEST(Simulate, WhereSomeAlwaysGenerateTheOthersHelp) {
  const Workload w = workload(2, {20, 30, 40, 120}, 4);
  Costs by_rows = costs();
  by_rows.token_step_s = [](int64_t rows) { return 0.002 + 0.004 * static_cast<double>(rows); };
  const Simulated split = simulated(PlacementKind::kSplit, w, by_rows), mixed = simulated(PlacementKind::kMixed, w, by_rows);
  EXPECT_LT(mixed.step_s, split.step_s);
  EXPECT_GT(mixed.generating_share[1], mixed.generating_share[0]);
}

// The last of each four groups has 400 tokens. While its first replica stands for training, another goes on with it.
TEST(Simulate, UnfinishedGroupsLeaveWhatStandsIfThatIsQuicker) {
  Workload w = workload(1, {20, 30, 40, 400}, 4);
  Costs slow_training = costs();
  slow_training.stage_s["train"] = 3;
  const double moves = simulated(PlacementKind::kMixed, w, slow_training).step_s;
  w.prompt_tokens = 1'000'000;  // computing those anew takes longer than standing
  EXPECT_LT(moves, simulated(PlacementKind::kMixed, w, slow_training).step_s);
}

// As the loop of a run: it asks for a batch before it starts groups, and the next ones start beside training, where nobody trains.
TEST(Simulate, WhereABatchIsReadyAtOnceThoseThatTrainGenerateNothing) {
  Costs slow_training = costs();
  slow_training.stage_s["train"] = 3;
  const Simulated s = simulated(PlacementKind::kMixed, workload(2, {20, 30, 40, 120}, 4), slow_training);
  EXPECT_NEAR(s.step_s, 3, 1e-9);
  EXPECT_EQ(s.generating_share[0], 0);
}

TEST(Simulate, StagesEndInTheOrderOfTheMachine) {
  const Simulated s = simulated(PlacementKind::kSplit, workload(1, {8}), costs(), false);
  const std::vector<std::string> step = {"rollout", "advantage", "ahead", "train", "meet", "switch"};
  ASSERT_EQ(s.order.size(), 60 * step.size());
  for (const std::string& name : step) EXPECT_EQ(std::ranges::count(s.order, name + " 2"), 1) << name;
  EXPECT_EQ(s.order.front(), "rollout 1");
  EXPECT_EQ(s.order.back(), "switch 60");
}

TEST(Simulate, RefusesNothingToGenerate) {
  EXPECT_THROW(simulated(PlacementKind::kColocated, workload(0, {}), costs()), InternalError);
}

TEST(Turns, AGroupLeavesIfItsTokensTakeLessThanTheReplicaStands) {
  Turns turns;
  turns.open(100);
  turns.close(101, 100);  // 10 ms a token
  EXPECT_FALSE(turns.is_better_moved(1)) << "it never stood";
  turns.open(103);
  turns.close(104, 50);  // 20 ms
  EXPECT_TRUE(turns.is_better_moved(99));
  EXPECT_FALSE(turns.is_better_moved(101));
  turns.open(105);  // it stood for 1 s
  turns.close(105.001, 0);  // a batch was ready at once
  EXPECT_TRUE(turns.is_better_moved(49)) << "it draws as fast as it did";
  EXPECT_FALSE(turns.is_better_moved(51));
}

TEST(Homes, TheLeastBusyReplicaTakesTheNextGroup) {
  Placement p = placement(PlacementKind::kMixed);
  model::Layout two;
  two.dp = 2;
  Homes homes(p, two);
  EXPECT_EQ(homes.least_busy(false), 0);
  EXPECT_EQ(homes.least_busy(true), 1) << "the first trains";
  homes.set(GroupId{4}, 0);
  homes.set(GroupId{6}, 1);
  homes.set(GroupId{8}, 1);
  EXPECT_EQ(homes.least_busy(false), 0);
  homes.finish(GroupId{6});
  homes.set(GroupId{9}, 0);
  EXPECT_EQ(homes.least_busy(false), 1);
  EXPECT_EQ(homes.of(GroupId{6}), 1);
  EXPECT_FALSE(homes.is_unfinished(GroupId{6}));
  homes.forget(GroupId{8});
  EXPECT_EQ(homes.of(GroupId{8}), homes.round(GroupId{8}));
}

}  // namespace
}  // namespace tandem::planner
