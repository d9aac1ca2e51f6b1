// SPDX-License-Identifier: Apache-2.0
#include "tandem/planner/interpret.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "schedules.h"
#include "tandem/base/error.h"

namespace tandem::planner {
namespace {

using Random = std::mt19937_64;

int64_t up_to(Random& random, int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1)); }

// Stages of any ranks, with edges within a step and across steps. Fields stay empty but for what check() wants of any schedule.
Schedule random_schedule(Random& random, int num_ranks) {
  Schedule s{"random", 8, {"actor"}, {}};
  const int n = 2 + static_cast<int>(up_to(random, 6));
  for (int i = 0; i < n; ++i) {
    const int first = static_cast<int>(up_to(random, num_ranks - 1));
    const RankRange ranks{first, 1 + static_cast<int>(up_to(random, num_ranks - first - 1))};
    s.stages.push_back({i == 0 ? StageKind::kUpdate : StageKind::kAdvantage, "stage" + std::to_string(i), 0, ranks, {}, {}, {}, {}});
  }
  for (int i = 0; i < n; ++i)
    for (int64_t edge = up_to(random, 3); edge > 0; --edge) {
      const int other = static_cast<int>(up_to(random, n - 1));
      const int64_t back = up_to(random, 3) + (other >= i ? 1 : 0);
      Stage& stage = s.stages[static_cast<size_t>(i)];
      const RankRange &a = stage.ranks, &b = s.stages[static_cast<size_t>(other)].ranks;
      if (a.first < b.first + b.count && b.first < a.first + a.count) stage.after.push_back({other, back});
    }
  return s;
}

// Drives the machine of all ranks; stages end in a random order. Returns what started on each rank, in order.
std::map<int, std::vector<std::string>> run_all(const Schedule& schedule, int64_t steps, int num_ranks, Random& random) {
  Interpreter machine(schedule, {1, steps});
  std::vector<StageRun> running;
  std::map<int, std::vector<std::string>> started;
  std::map<std::string, bool> ended;
  for (int64_t events = 0; !machine.done(); ++events) {
    for (StageRun run : machine.may_start()) {
      if (!running.empty() && up_to(random, 1) == 0) continue;
      const Stage& stage = machine.stage(run);
      for (const After& a : stage.after) {
        const std::string before = schedule.stages[static_cast<size_t>(a.stage)].name + "@" + std::to_string(run.step - a.steps_back);
        EXPECT_TRUE(run.step - a.steps_back < 1 || ended[before]) << stage.name << "@" << run.step << " started before " << before;
      }
      machine.start(run);
      running.push_back(run);
      for (int r = 0; r < num_ranks; ++r)
        if (stage.ranks.has(r)) started[r].push_back(stage.name + "@" + std::to_string(run.step));
    }
    if (running.empty()) return ADD_FAILURE() << "nothing runs and nothing may start", started;
    const auto which = static_cast<size_t>(up_to(random, std::ssize(running) - 1));
    ended[machine.stage(running[which]).name + "@" + std::to_string(running[which].step)] = true;
    machine.end(running[which]);
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(which));
  }
  return started;
}

std::vector<std::string> order_of(const Schedule& schedule, int64_t steps, int rank) {
  std::vector<std::string> order;
  for (int64_t step = 1; step <= steps; ++step)
    for (const Stage& stage : schedule.stages)
      if (stage.ranks.has(rank)) order.push_back(stage.name + "@" + std::to_string(step));
  return order;
}

TEST(Interpreter, TenThousandRandomSchedulesEndAndEachRankKeepsItsOrder) {
  Random random(1);
  constexpr int kRanks = 4;
  for (int i = 0; i < 10000; ++i) {
    const Schedule schedule = random_schedule(random, kRanks);
    const int64_t steps = 1 + up_to(random, 4);
    const auto started = run_all(schedule, steps, kRanks, random);
    for (int r = 0; r < kRanks; ++r) {
      const auto found = started.find(r);
      ASSERT_EQ(found == started.end() ? std::vector<std::string>() : found->second, order_of(schedule, steps, r)) << "schedule " << i;
    }
  }
}

// Four ranks, each with a machine of its own. A stage is a meeting of its ranks: it begins when the last has come, and each leaves in
// its own time. Returns for each set of ranks, that is for each communicator, the order of what ran on it.
using Orders = std::map<std::pair<int, int>, std::vector<std::string>>;
Orders run_ranks(const Schedule& schedule, int64_t steps, Random& random) {
  constexpr int kRanks = 4;
  std::vector<Interpreter> machines;
  for (int r = 0; r < kRanks; ++r) machines.emplace_back(schedule, Steps{1, steps}, r);
  std::vector<std::optional<StageRun>> inside(kRanks);  // what a rank has come to
  std::map<std::pair<int, int64_t>, int> arrived, left;
  Orders orders;
  for (int64_t idle = 0; std::ranges::any_of(machines, [](const Interpreter& m) { return !m.done(); });) {
    const auto r = static_cast<size_t>(up_to(random, kRanks - 1));
    Interpreter& machine = machines[r];
    if (++idle > 10000) return ADD_FAILURE() << "ranks wait for each other", orders;
    if (!inside[r]) {
      const std::vector<StageRun> next = machine.may_start();
      if (next.empty()) continue;
      EXPECT_EQ(next.size(), 1u);
      machine.start(next[0]);
      inside[r] = next[0];
      if (++arrived[{next[0].stage, next[0].step}] == machine.stage(next[0]).ranks.count) {
        const RankRange& ranks = machine.stage(next[0]).ranks;
        orders[{ranks.first, ranks.count}].push_back(machine.stage(next[0]).name + "@" + std::to_string(next[0].step));
      }
      idle = 0;
    } else if (arrived[{inside[r]->stage, inside[r]->step}] == machine.stage(*inside[r]).ranks.count) {
      machine.end(*inside[r]);
      inside[r].reset();
      idle = 0;
    }
  }
  return orders;
}

TEST(Interpreter, AThousandPermutedArrivalsNeverChangeTheOrderOnACommunicator) {
  Random random(1);
  for (const ScheduleNeeds& needs : test::all_needs()) {
    if (needs.reference != needs.old_logprob || needs.start_is_reference) continue;  // a few of each kind
    const Schedule schedule = schedule_for(needs);
    const Orders first = run_ranks(schedule, 4, random);
    for (int i = 0; i < 1000 && !testing::Test::HasFailure(); ++i) ASSERT_EQ(run_ranks(schedule, 4, random), first) << to_text(schedule);
  }
}

// The orders that the tests above compare can differ: stages of ranks that share none have no order.
TEST(Interpreter, StagesOfOtherRanksStartInAnyOrder) {
  Schedule s = schedule_for({.placement = placement_of(PlacementKind::kSplit, 2, 2), .staleness = 1});
  std::map<std::string, int> seen;
  Random random(7);
  for (int i = 0; i < 200; ++i) {
    Interpreter machine(s, {1, 1});
    std::string order;
    std::vector<StageRun> running;
    while (!machine.done()) {
      std::vector<StageRun> next = machine.may_start();
      std::shuffle(next.begin(), next.end(), random);
      for (StageRun run : next) machine.start(run), order += machine.stage(run).name + " ", running.push_back(run);
      machine.end(running.front());
      running.erase(running.begin());
    }
    ++seen[order];
  }
  EXPECT_GT(seen.size(), 1u);
}

TEST(Interpreter, RolloutGoesOnBesideTheUpdate) {
  const Schedule s = schedule_for({.placement = placement_of(PlacementKind::kSplit, 1, 1), .staleness = 2});
  Interpreter machine(s, {1, 2});
  const auto names = [&] {
    std::vector<std::string> all;
    for (StageRun run : machine.may_start()) all.push_back(machine.stage(run).name);
    return all;
  };
  const auto pass = [&](const std::string& name) {
    for (StageRun run : machine.may_start())
      if (machine.stage(run).name == name) return machine.start(run), machine.end(run);
    ADD_FAILURE() << name << " may not start";
  };
  EXPECT_EQ(names(), (std::vector<std::string>{"rollout"}));
  pass("rollout");
  EXPECT_EQ(names(), (std::vector<std::string>{"advantage", "ahead"}));
  pass("advantage");
  EXPECT_EQ(names(), (std::vector<std::string>{"train", "ahead"}));
  pass("ahead");
  EXPECT_EQ(names(), (std::vector<std::string>{"train"}));
  pass("train");
  EXPECT_EQ(names(), (std::vector<std::string>{"meet"}));
  pass("meet");
  pass("switch");
  EXPECT_TRUE(machine.done_with(1));
  EXPECT_FALSE(machine.done());
}

TEST(Interpreter, RolloutAndRewardRunAgainUntilTheBatchIsComplete) {
  constexpr int64_t kMost = 3;
  const Schedule s = schedule_for({.placement = placement_of(PlacementKind::kFullyColocated, 2, 2),
                                   .staleness = 0,
                                   .reference = true,
                                   .reward_stage = true,
                                   .most_rounds = kMost});
  ASSERT_TRUE(s.repeat);
  Interpreter machine(s, {1, 2}, 1);
  std::vector<std::string> order;
  int64_t rounds = 0;
  while (!machine.done()) {
    const StageRun run = machine.may_start().at(0);
    machine.start(run);
    order.push_back(machine.stage(run).name);
    if (machine.stage(run).kind != StageKind::kReward) {
      EXPECT_THROW(machine.repeat(run), InternalError) << "only the last stage of the repeat may ask for it";
      machine.end(run);
    } else if (run.step == 1 && ++rounds < kMost) {
      machine.repeat(run);
    } else {
      if (run.step == 1) {
        EXPECT_THROW(machine.repeat(run), InternalError) << "the schedule says how often";
      }
      machine.end(run);
    }
  }
  const std::vector<std::string> rest = {"reference", "advantage", "train", "meet", "switch"};
  std::vector<std::string> wanted;
  for (int64_t n : {kMost, int64_t{1}}) {
    for (; n > 0; --n) wanted.insert(wanted.end(), {"rollout", "reward"});
    wanted.insert(wanted.end(), rest.begin(), rest.end());
  }
  EXPECT_EQ(order, wanted);
  EXPECT_NE(timeline(s, 1).find("rollout to reward again until each group of the batch has spread, at most 3 times in a step"),
            std::string::npos)
      << timeline(s, 1);
}

TEST(Interpreter, AnEventThatMayNotHappenIsRefused) {
  const Schedule s = schedule_for({.placement = placement_of(PlacementKind::kColocated, 1, 1)});
  Interpreter machine(s, {1, 1});
  EXPECT_THROW(machine.start({1, 1}), InternalError);
  EXPECT_THROW(machine.end({0, 1}), InternalError);
  machine.start({0, 1});
  EXPECT_THROW(machine.start({0, 1}), InternalError);
  EXPECT_THROW(machine.end({0, 2}), InternalError);
}

TEST(Timeline, ShowsWhoWaitsForWhat) {
  const Schedule s = schedule_for({.placement = placement_of(PlacementKind::kSplit, 2, 2), .staleness = 1, .reference = true});
  const std::string text = timeline(s, 1);
  EXPECT_NE(text.find("ranks 0 to 1 | rollout 1 | reference 1 | advantage 1 | train 1 |"), std::string::npos) << text;
  EXPECT_NE(text.find("ranks 2 to 3 | rollout 1 |"), std::string::npos) << text;
  EXPECT_NE(text.find("after switch of 1 step before"), std::string::npos) << text;
  EXPECT_NE(text.find("train      ranks 0 to 1  after reference, advantage"), std::string::npos) << text;
}

}  // namespace
}  // namespace tandem::planner
