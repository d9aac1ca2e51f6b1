// SPDX-License-Identifier: Apache-2.0
// One process of an MPI job: comm_mpi_test conform | fail | late | large | message FAULT. Exit code 0 if what should happen did.
#include <unistd.h>

#include <iostream>

#include "comm_suite.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/comm/launch.h"

namespace tandem::comm {
namespace {

int conform() {
  run_mpi(60, [](Group& world) {
    if (!mpi_launched()) throw UserError("comm_mpi_test", "not started by a launcher", "scripts/mpi -n 2");
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
    run_mpi(30, [](Group& world) {
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
    run_mpi(1, [](Group& world) {
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
      run_mpi(fault.deadline_s, [&](Group& world) {
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
  run_mpi(60, [](Group& world) {
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

}  // namespace
}  // namespace tandem::comm

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string mode = argc > 1 ? argv[1] : "conform";
  if (mode == "fail") return tandem::comm::fail();
  if (mode == "late") return tandem::comm::late();
  if (mode == "large") return tandem::comm::large();
  if (mode == "message") return tandem::comm::message(argc > 2 ? argv[2] : "");
  return tandem::comm::conform();
}
