// SPDX-License-Identifier: Apache-2.0
// One process of an MPI job: comm_mpi_test conform | fail | late. Exit code 0 if what should happen did.
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
    right = std::string(e.what()).find("barrier in group 'world' with rank 1: no sign of it within 1 s") != std::string::npos;
    if (!right) std::cerr << e.what() << "\n";
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace tandem::comm

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string mode = argc > 1 ? argv[1] : "conform";
  if (mode == "fail") return tandem::comm::fail();
  if (mode == "late") return tandem::comm::late();
  return tandem::comm::conform();
}
