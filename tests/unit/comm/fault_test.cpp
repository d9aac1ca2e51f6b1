// SPDX-License-Identifier: Apache-2.0
// One rank of several throws, hangs, or is slow, in any operation of the world or of groups within groups, under a clock
// whose minutes pass at once. Whoever is not to blame must say who is.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>

#include "../../comm_operation.h"
#include "../../virtual_clock.h"
#include "tandem/base/error.h"
#include "tandem/base/rng.h"
#include "tandem/comm/launch.h"

namespace tandem::comm {
namespace {

constexpr double kDeadline_s = 60;
constexpr int kDepth = 3, kSteps = 10;

enum class Kind { kThrow, kHang, kLate, kSlow };

struct Step {
  Operation operation;
  int depth;  // 0: the world, 1: a part of it, 2: a part of that
};

/// What goes wrong: before `step`, rank `culprit` throws or sleeps.
struct Trial {
  int ranks, culprit, step;
  Kind kind;
  double sleep_s;
  uint64_t colors;  // of the parts, a bit for each rank
  std::vector<Step> steps;

  int color(int rank, int depth) const { return static_cast<int>(colors >> (8 * depth + rank) & 1); }
  /// Whether another rank takes part where the culprit is in the group of this depth.
  bool has_peers(int depth) const {
    int members = 0;
    for (int r = 0; r < ranks; ++r) {
      bool same = true;
      for (int d = 0; d < depth; ++d) same = same && color(r, d) == color(culprit, d);
      members += same;
    }
    return members > 1;
  }
};

Trial draw(RandomStream& random, int number) {
  Trial t;
  t.ranks = 2 + static_cast<int>(random.below(7));
  t.culprit = static_cast<int>(random.below(t.ranks));
  t.step = static_cast<int>(random.below(kSteps));
  t.kind = static_cast<Kind>(number % 4);
  t.sleep_s = t.kind == Kind::kSlow ? 1 + random.uniform() * (kDeadline_s - 2) : kDeadline_s + 1 + random.uniform() * 600;
  t.colors = random.next_u64();
  for (int i = 0; i < kSteps; ++i)
    t.steps.push_back({static_cast<Operation>(random.below(kNumOperations)), static_cast<int>(random.below(kDepth))});
  // Every operation and depth gets its share of faults.
  t.steps[static_cast<size_t>(t.step)] = {static_cast<Operation>(number / 4 % kNumOperations), number / 4 / kNumOperations % kDepth};
  while (!t.has_peers(t.steps[static_cast<size_t>(t.step)].depth)) --t.steps[static_cast<size_t>(t.step)].depth;
  return t;
}

struct Outcome {
  std::vector<std::string> errors;  // by rank; "" where it went on to the end
  std::vector<double> end_s;        // by rank
  double fault_s = 0;
  std::string reported;
};

void run_rank(Group& world, const Trial& t, VirtualClock& clock, Outcome& outcome) {
  const int me = world.rank();
  auto half = world.split(t.color(me, 0), "half");
  auto quarter = half->split(t.color(me, 1), "quarter");
  Group* const groups[kDepth] = {&world, half.get(), quarter.get()};
  for (int i = 0; i < kSteps; ++i) {
    const Step& step = t.steps[static_cast<size_t>(i)];
    if (i == t.step && me == t.culprit) {
      outcome.fault_s = clock.seconds();
      if (t.kind == Kind::kThrow) throw std::runtime_error("injected");
      clock.sleep_s(t.kind == Kind::kHang ? 100 * kDeadline_s : t.sleep_s);
    }
    EXPECT_TRUE(operation_is_right(*groups[step.depth], step.operation)) << operation_name(step.operation);
  }
  world.barrier();
}

Outcome run_trial(const Trial& t) {
  VirtualClock clock;
  Outcome outcome;
  outcome.errors.resize(static_cast<size_t>(t.ranks)), outcome.end_s.resize(static_cast<size_t>(t.ranks));
  const auto body = [&](Group& world) {
    const auto me = static_cast<size_t>(world.rank());
    try {
      run_rank(world, t, clock, outcome);
    } catch (const std::exception& e) {
      outcome.errors[me] = e.what();
      outcome.end_s[me] = clock.seconds();
      throw;
    }
  };
  try {
    run_local(t.ranks, kDeadline_s, body, clock);
  } catch (const std::exception& e) {
    outcome.reported = e.what();
  }
  EXPECT_EQ(clock.num_threads(), 0) << "a thread stays";
  return outcome;
}

void check(const Trial& t, const Outcome& outcome) {
  const std::string culprit = "rank " + std::to_string(t.culprit);
  for (int r = 0; r < t.ranks; ++r) {
    const std::string& error = outcome.errors[static_cast<size_t>(r)];
    if (t.kind == Kind::kSlow) {
      EXPECT_EQ(error, "") << "slow, but within the deadline";
      continue;
    }
    if (r == t.culprit) continue;
    const std::regex place("^rank " + std::to_string(r) + ": [a-z_]+ in group '(world|half|quarter|pair)'");
    EXPECT_TRUE(std::regex_search(error, place)) << error;
    const std::string accusation = t.kind == Kind::kThrow ? culprit + " failed: injected" : ": no sign of " + culprit + " within 60 s";
    EXPECT_NE(error.find(accusation), std::string::npos) << error;
    const double limit_s = outcome.fault_s + (t.kind == Kind::kThrow ? 0 : kDeadline_s);
    EXPECT_LE(outcome.end_s[static_cast<size_t>(r)], limit_s + 1e-6) << "rank " << r << " waits on: " << error;
  }
  if (t.kind == Kind::kThrow) {
    EXPECT_EQ(outcome.reported, "injected");
  }
}

int64_t num_threads_of_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

TEST(Faults, AThousandInjectionsAreBlamedOnTheirCulpritWithinTheDeadline) {
  constexpr uint64_t seed = 1;
  RandomStream random(seed, 0);
  const int64_t threads_before = num_threads_of_process();
  for (int number = 0; number < 1000; ++number) {
    const Trial t = draw(random, number);
    check(t, run_trial(t));
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ", trial " << number << ": " << t.ranks << " ranks, rank " << t.culprit << " at step "
                               << t.step << " (" << operation_name(t.steps[static_cast<size_t>(t.step)].operation) << ", depth "
                               << t.steps[static_cast<size_t>(t.step)].depth << "), kind " << static_cast<int>(t.kind);
  }
  EXPECT_EQ(num_threads_of_process(), threads_before);
  std::printf("1000 injections, seed %llu\n", static_cast<unsigned long long>(seed));
}

TEST(Faults, RanksThatWaitForEachOtherAreNamedWithWhatTheyWaitIn) {
  VirtualClock clock;
  std::string reported;
  const auto body = [](Group& world) {
    auto pair = world.split(0, "pair");
    (world.rank() == 0 ? world : *pair).barrier();
  };
  try {
    run_local(2, kDeadline_s, body, clock);
  } catch (const PeerError& e) {
    reported = e.what();
  }
  const std::string one = "rank 0: barrier in group 'world': no sign of rank 1 (it waits in barrier of group 'pair') within 60 s";
  const std::string other = "rank 1: barrier in group 'pair': no sign of rank 0 (it waits in barrier of group 'world') within 60 s";
  EXPECT_TRUE(reported == one || reported == other) << reported;
}

}  // namespace
}  // namespace tandem::comm
