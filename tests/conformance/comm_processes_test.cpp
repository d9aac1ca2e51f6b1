// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes, of a launcher or started by the first of them:
//   comm_processes_test mpi | RANKS  conform | fail | late | large | message FAULT | absent | killed | leaves | untaken SIZE
// Exit code 0 if what should happen did, as this rank sees it; of those that are started here, as rank 0 does.
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>

#include "comm_suite.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/comm/launch.h"

namespace tandem::comm {
namespace {

int num_ranks = 0;  // started here; 0: by a launcher

void run_ranks(double deadline_s, const RankBody& body) {
  num_ranks > 0 ? run_processes(num_ranks, deadline_s, body) : run_mpi(deadline_s, body);
}

/// What a process that this one starts has of its sockets.
std::string inherited_sockets() {
  std::string text;
  const std::unique_ptr<FILE, int (*)(FILE*)> listing(popen("ls -l /proc/self/fd; env", "r"), pclose);
  for (std::array<char, 512> line{}; fgets(line.data(), line.size(), listing.get());)
    if (const std::string said = line.data(); said.find("socket:") != said.npos || said.starts_with("TANDEM_STARTED_RANK")) text += said;
  return text;
}

int conform() {
  run_ranks(60, [](Group& world) {
    if (num_ranks == 0 && !mpi_launched()) throw UserError("comm_processes_test", "not started by a launcher", "scripts/mpi -n 2");
    EXPECT_TRUE(are_processes(world));
    EXPECT_FALSE(is_started_rank()) << "it has come";
    if (num_ranks > 0) {
      EXPECT_EQ(world.size(), num_ranks);
      EXPECT_EQ(inherited_sockets(), "") << "a worker would keep a dead rank's connections open";
    }
    for (const suite::Case& c : suite::cases()) {
      c.body(world);
      if (testing::UnitTest::GetInstance()->Failed()) std::cerr << "rank " << world.rank() << ": " << c.name << " failed\n";
    }
    at::Tensor failed = at::full({1}, testing::UnitTest::GetInstance()->Failed() ? 1 : 0, at::kLong);
    world.all_reduce(failed, ReduceOp::kMax);
    if (failed.item<int64_t>() != 0) throw PeerError("conformance failed on some rank");
  });
  return 0;
}

/// The last rank fails; everyone must hear its reason within seconds, the culprit as its own exception.
int fail() {
  const double start_s = now_s();
  bool right = false;
  try {
    run_ranks(30, [](Group& world) {
      if (world.rank() == world.size() - 1) throw UserError("data", "is odd", "even data");
      world.barrier();
    });
  } catch (const UserError& e) {
    right = std::string(e.what()) == "data: is odd (even data)";
  } catch (const PeerError& e) {
    right = std::string(e.what()).find("rank 1 failed: data: is odd") != std::string::npos;
    if (!right) std::cerr << e.what() << "\n";
  }
  return right && now_s() - start_s < 10 ? 0 : 1;
}

/// The last rank sleeps through the deadline; the others name it.
int late() {
  bool right = false;
  try {
    run_ranks(1, [](Group& world) {
      if (world.rank() == world.size() - 1) sleep(3);
      world.barrier();
    });
  } catch (const PeerError& e) {
    right = std::string(e.what()).find("barrier in group 'world': no sign of rank 1 within 1 s") != std::string::npos;
    if (!right) std::cerr << e.what() << "\n";
  }
  return right ? 0 : 1;
}

/// Rank 0 names rank 1, which is to blame.
int message(const std::string& name) {
  for (const suite::Fault& fault : suite::message_faults()) {
    if (fault.name != name) continue;
    int rank = -1;
    std::string said = "nothing";
    try {
      run_ranks(fault.deadline_s, [&](Group& world) {
        rank = world.rank();
        rank == 1 ? fault.culprit(world) : suite::receive_four(world);
      });
    } catch (const PeerError& e) {
      said = e.what();
    }
    const bool right = rank == 1 || said.starts_with(fault.survivor_says);
    if (!right) std::cerr << fault.name << ": " << said << "\n";
    return right ? 0 : 1;
  }
  std::cerr << "no fault " << name << "\n";
  return 2;
}

/// More than MPI counts in one message, and more than it sends at once.
int large() {
  run_ranks(60, [](Group& world) {
    const int64_t bytes = (int64_t{1} << 30) * (world.rank() == 0 ? 1 : 0) + (int64_t{1} << 30);
    at::Tensor t = at::empty({bytes}, at::kByte);
    if (world.rank() == 0) {
      t.fill_(3);
      t[bytes - 1] = 9;
      world.send(t, 1, 0);
      world.send(at::full({1}, 4, at::kByte), 1, 0);
    } else if (world.rank() == 1) {
      at::Tensor large = at::empty({2 * bytes}, at::kByte), small = at::empty({1}, at::kByte);
      world.receive(large, 0, 0);
      world.receive(small, 0, 0);
      if (large[2 * bytes - 1].item<int>() != 9 || large[bytes].item<int>() != 3 || small.item<int>() != 4) throw PeerError("other bytes");
    }
    world.barrier();
  });
  return 0;
}

/// What rank 0 ends with where rank 1 does `instead` of coming, or before it comes.
int without_rank_1(void (*instead)(), int exit_code, const std::string& says) {
  if (is_started_rank()) instead();
  try {
    run_ranks(60, [](Group&) {});
  } catch (const PeerError& e) {
    if (exit_code_of(e) == exit_code && says == e.what()) return 0;
    std::cerr << exit_code_of(e) << ": " << e.what() << "\n";
  }
  return 1;
}

/// A message that nobody takes: of rank 1, which keeps a large one, and of which rank 0 has a small one.
int untaken(int64_t bytes) {
  try {
    run_ranks(60, [&](Group& world) {
      if (world.rank() == 1) world.send(at::zeros({bytes}, at::kByte), 0, 3);
    });
  } catch (const ReportedElsewhere& e) {
    return bytes > 100'000 && e.exit_code == 3 ? 0 : 1;
  } catch (const PeerError& e) {
    if (bytes < 100'000 && std::string(e.what()) == "rank 1: send in group 'world' with rank 0: nobody took the message") return 0;
    std::cerr << e.what() << "\n";
  }
  return 1;
}

}  // namespace
}  // namespace tandem::comm

int main(int argc, char** argv) {
  using namespace tandem::comm;
  testing::InitGoogleTest(&argc, argv);
  const std::string mode = argc > 2 ? argv[2] : "", what = argc > 3 ? argv[3] : "";
  num_ranks = argc > 1 ? std::atoi(argv[1]) : 0;
  if (mode == "conform") return conform();
  if (mode == "fail") return fail();
  if (mode == "late") return late();
  if (mode == "large") return large();
  if (mode == "message") return message(what);
  if (mode == "untaken") return untaken(std::atoll(what.c_str()));
  if (mode == "absent") return without_rank_1([] { std::exit(5); }, 5, "rank 1 ended before all ranks had started: exit code 5");
  if (mode == "killed")
    return without_rank_1([] { raise(SIGKILL); }, 3, "rank 1 ended before all ranks had started: signal 9 (Killed)");
  if (mode == "leaves")
    return without_rank_1([] { std::atexit([] { _exit(7); }); }, 3,
                          "rank 1 had done its part, and its process then ended with exit code 7");
  std::cerr << "no mode " << mode << "\n";
  return 2;
}
