// SPDX-License-Identifier: Apache-2.0
#include "tandem/planner/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tandem/base/error.h"

namespace tandem::planner {
namespace {

constexpr double kToken_s = 0.01, kTrain_s = 0.5;

Costs costs() {
  return {[](int64_t) { return kToken_s; }, {{"train", kTrain_s}}};
}

Workload workload(int64_t staleness, std::vector<int64_t> lengths, int64_t groups_per_step = 1) {
  return {{.groups_per_step = groups_per_step, .staleness = staleness, .policy = queue::LagPolicy::kWait}, 1, std::move(lengths), 8};
}

Schedule schedule(PlacementKind kind, int64_t staleness) {
  const int rollout = kind == PlacementKind::kSplit ? 1 : 2, train = kind == PlacementKind::kColocated ? 2 : 1;
  return schedule_for({.placement = placement_of(kind, train, rollout), .staleness = staleness});
}

TEST(Simulate, WithoutStalenessAStepIsItsStagesOneAfterTheOther) {
  for (const PlacementKind kind : {PlacementKind::kColocated, PlacementKind::kSplit}) {
    const Replicas replicas = kind == PlacementKind::kSplit ? Replicas{.alone = 1} : Replicas{.beside_training = 2};
    const Simulated s = simulate(schedule(kind, 0), workload(0, {64, 32}, 2), replicas, costs(), 10, 6);
    EXPECT_NEAR(s.step_s, 64 * kToken_s + kTrain_s, 1e-9);
    EXPECT_NEAR(s.generating_share[0], 64 * kToken_s / s.step_s, 1e-9);
  }
}

// A group starts when the one before the last is trained: two steps take its tokens and its training.
TEST(Simulate, AStreamOverlapsTrainingAsFarAsTheRuleLetsIt) {
  const Simulated s = simulate(schedule(PlacementKind::kSplit, 1), workload(1, {64}), {.alone = 1, .is_free = true}, costs(), 40, 30);
  EXPECT_NEAR(s.step_s, (64 * kToken_s + kTrain_s) / 2, kToken_s);
  const Simulated more = simulate(schedule(PlacementKind::kSplit, 4), workload(4, {64}), {.alone = 1, .is_free = true}, costs(), 40, 30);
  EXPECT_NEAR(more.step_s, kTrain_s, 1e-9) << "training never waits";
}

TEST(Simulate, InTurnsALongAnswerGoesOnInTheNextSteps) {
  const std::vector<int64_t> lengths = {8, 8, 8, 200};
  const Replicas both{.beside_training = 2};
  const Simulated sync = simulate(schedule(PlacementKind::kColocated, 0), workload(0, lengths, 4), both, costs(), 20, 12);
  const Simulated stale = simulate(schedule(PlacementKind::kColocated, 2), workload(2, lengths, 4), both, costs(), 60, 48);
  EXPECT_NEAR(sync.step_s, 200 * kToken_s + kTrain_s, 64 * kToken_s);
  EXPECT_LT(stale.step_s, 0.6 * sync.step_s);
}

TEST(Simulate, WhereSomeAlwaysGenerateTheOthersHelp) {
  const Workload w = workload(2, {20, 30, 40, 120}, 4);
  Costs by_rows = costs();
  by_rows.token_step_s = [](int64_t rows) { return 0.002 + 0.004 * static_cast<double>(rows); };
  const Simulated split = simulate(schedule(PlacementKind::kSplit, 2), w, {.alone = 1, .is_free = true}, by_rows, 60, 48);
  const Simulated mixed =
      simulate(schedule(PlacementKind::kMixed, 2), w, {.beside_training = 1, .alone = 1, .is_free = true}, by_rows, 60, 48);
  EXPECT_LT(mixed.step_s, split.step_s);
  EXPECT_GT(mixed.generating_share[1], mixed.generating_share[0]);
}

TEST(Simulate, StagesEndInTheOrderOfTheMachine) {
  const Simulated s = simulate(schedule(PlacementKind::kSplit, 1), workload(1, {8}), {.alone = 1}, costs(), 3, 1);
  const std::vector<std::string> step = {"rollout", "advantage", "ahead", "train", "meet", "switch"};
  ASSERT_EQ(s.order.size(), 3 * step.size());
  for (const std::string& name : step) EXPECT_EQ(std::ranges::count(s.order, name + " 2"), 1) << name;
  EXPECT_EQ(s.order.front(), "rollout 1");
  EXPECT_EQ(s.order.back(), "switch 3");
}

TEST(Simulate, RefusesNothingToGenerate) {
  EXPECT_THROW(simulate(schedule(PlacementKind::kColocated, 0), workload(0, {}), {.beside_training = 2}, costs(), 4, 2), InternalError);
}

}  // namespace
}  // namespace tandem::planner
