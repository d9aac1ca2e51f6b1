// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/launch.h"

#include <gtest/gtest.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/comm/mesh.h"

namespace tandem::comm {
namespace {

constexpr double kWorksAsOneDeadlineS = 60;

/// Runs ranks that each note the text of the PeerError they saw.
std::vector<std::string> errors_of(int ranks, double deadline_s, const RankBody& body) {
  std::vector<std::string> seen(static_cast<size_t>(ranks));
  try {
    run_local(ranks, deadline_s, [&](Group& world) {
      try {
        body(world);
      } catch (const PeerError& e) {
        seen[static_cast<size_t>(world.rank())] = e.what();
        throw;
      }
    });
  } catch (const std::exception&) {
  }
  return seen;
}

TEST(RunLocal, RethrowsTheFirstCulprit) {
  for (int trial = 0; trial < 50; ++trial) {
    try {
      run_local(4, 30, [](Group& world) {
        if (world.rank() == 2) throw UserError("reward", "bad", "good");
        world.barrier();
      });
      FAIL();
    } catch (const UserError& e) {
      EXPECT_STREQ(e.what(), "reward: bad (good)");
    }
  }
}

TEST(RunLocal, PeersOfACulpritHearItsNameAtOnce) {
  const double start_s = now_s();
  const auto seen = errors_of(3, 30, [](Group& world) {
    if (world.rank() == 1) throw std::runtime_error("disk full");
    world.barrier();
  });
  EXPECT_EQ(seen[0], "rank 0: barrier in group 'world' ended: rank 1 failed: disk full");
  EXPECT_EQ(seen[2], "rank 2: barrier in group 'world' ended: rank 1 failed: disk full");
  EXPECT_LT(now_s() - start_s, 5);
}

TEST(RunLocal, AWaitEndsAtItsDeadlineAndNamesWhoIsLate) {
  const auto seen = errors_of(3, 0.2, [](Group& world) {
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(800));
    world.barrier();
  });
  EXPECT_NE((seen[0] + seen[2]).find("barrier in group 'world': no sign of rank 1 within 0.2 s"), std::string::npos) << seen[0] << seen[2];
  EXPECT_NE(seen[1].find("no sign of rank 1"), std::string::npos) << "the late one learns why it is dead";
}

TEST(RunLocal, AbortWakesThoseWhoWaitInAChild) {
  const auto seen = errors_of(3, 30, [](Group& world) {
    auto pair = world.split(world.rank() == 2 ? 1 : 0, "pair");
    if (world.rank() == 2) world.abort("told to stop");
    if (world.rank() == 0) pair->barrier();
    while (world.rank() == 1) world.barrier();
  });
  EXPECT_EQ(seen[0], "rank 0: barrier in group 'pair' ended: told to stop");
}

TEST(RunLocal, ADeadGroupStaysDead) {
  auto group = single();
  group->abort("over");
  for (int i = 0; i < 2; ++i) EXPECT_THROW(group->barrier(), PeerError);
}

TEST(RunLocal, RanksThatCallDifferentOperationsAreTold) {
  const auto seen = errors_of(2, 5, [](Group& world) {
    at::Tensor t = at::zeros({world.rank() == 0 ? 4 : 8}, at::kFloat);
    world.all_reduce(t, ReduceOp::kSum);
  });
  EXPECT_NE(seen[0].find("disagrees with rank"), std::string::npos) << seen[0];
  EXPECT_NE(seen[1].find("disagrees with rank"), std::string::npos) << seen[1];
}

TEST(RunLocal, ByteCountsMustAgreePairwise) {
  const auto seen = errors_of(2, 5, [](Group& world) {
    std::vector<std::byte> buffer(16);
    const std::vector<int64_t> send = {1, 1}, receive = {1, world.rank() == 0 ? 2 : 1};
    world.all_to_all_v(buffer, send, buffer, receive);
  });
  EXPECT_NE(seen[0].find("sends 1 bytes to rank 0, which expects 2"), std::string::npos) << seen[0];
  EXPECT_NE(seen[1].find("sends 1 bytes to rank 0, which expects 2"), std::string::npos) << seen[1];
}

TEST(Mesh, SizesMustFitTheWorld) {
  auto one = single();
  EXPECT_THROW(Mesh(*one, {.dp = 2}), UserError);
  EXPECT_THROW(Mesh(*one, {.tp = 0}), UserError);
  EXPECT_THROW(Mesh(*one, {.ep = 2}), UserError);
  EXPECT_EQ(Mesh(*one, {}).along(Axis::kTp).size(), 1);
}

TEST(Mesh, AnExchangeWithinALayerIsWorkAndOneBetweenReplicasIsAWait) {
  run_local(4, kWorksAsOneDeadlineS, [](Group& world) {
    Mesh mesh(world, {.dp = 2, .tp = 2});
    world.barrier();
    (void)take_waited_s();
    constexpr double kLate_s = 0.05;
    for (const Axis axis : {Axis::kTp, Axis::kDp}) {
      if (mesh.index(axis) == 1) std::this_thread::sleep_for(std::chrono::duration<double>(kLate_s));
      at::Tensor one = at::ones({1});
      mesh.along(axis).all_reduce(one, ReduceOp::kSum);
      const double waited_s = take_waited_s();
      if (axis == Axis::kTp) EXPECT_EQ(waited_s, 0);
      else EXPECT_GT(waited_s, 0);
      world.barrier();
      (void)take_waited_s();
    }
  });
}

}  // namespace
}  // namespace tandem::comm
