// SPDX-License-Identifier: Apache-2.0
// All of backend/c10d but NCCL and HCCL: groups, messages, deadlines and the meeting of ranks, over a library that needs no device.
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>

#include "comm_suite.h"
#include "device_suite.h"
#include "store_library.h"
#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/backend/c10d/job.h"
#include "tandem/comm/backend/c10d/rendezvous.h"
#include "tandem/comm/backend/c10d/device_group.h"
#include "tandem/comm/launch.h"

namespace tandem::comm {

std::string device_library_name() { return "store"; }
void set_environment(double) {}
namespace {
std::atomic<int> num_with_devices = 0;  // ranks that have fake devices
}
Library device_library(int number) {
  return suite::store_library(num_with_devices > 0 ? at::Device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(number)) : at::kCPU);
}

namespace {

at::Device device_of(const Group& world) {
  const at::Device device = device::device_named("fake", "the device", world.rank(), world.size());
  device::backend_of(device).use(device);
  return device;
}

/// A rank with a fake device, whose tensors c10d carries.
void with_library(Group& world, const RankBody& body, double deadline_s = 60) {
  struct WithDevice {
    WithDevice() { ++num_with_devices; }
    ~WithDevice() { --num_with_devices; }
  } const with_device;
  const at::Device device = device_of(world);
  with_groups(carry_by_library(world, device, deadline_s), world, [&] { body(world); });
}

// The first operation of a group connects it, and waits on the host.
void connect(Group& world) {
  at::Tensor one = device_suite::full(world, 1, 1);
  world.all_reduce(one, ReduceOp::kSum);
  EXPECT_EQ(one.item<float>(), static_cast<float>(world.size()));
}

/// Ranks as threads, each so.
void run_with_devices(int ranks, const RankBody& body) {
  run_local(ranks, 60, [&](Group& world) { with_library(world, body); });
}

/// Ranks as threads that share a store, each with a job of its own. What each says in the end, "" if all is well.
std::vector<std::string> run_threads(int ranks, double deadline_s, const RankBody& body) {
  const auto store = c10::make_intrusive<::c10d::HashStore>();
  std::vector<std::string> said(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        C10dJob job(store, {nullptr, r, ranks, "world", deadline_s}, suite::store_library());
        run_job(job, body);
      } catch (const ReportedElsewhere& e) {
        said[static_cast<size_t>(r)] = std::string("elsewhere: ") + e.what();
      } catch (const std::exception& e) {
        said[static_cast<size_t>(r)] = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  return said;
}

class C10dComm : public testing::TestWithParam<std::tuple<int, suite::Case>> {};

TEST_P(C10dComm, Conforms) {
  const auto& [ranks, c] = GetParam();
  EXPECT_EQ(run_threads(ranks, 60, c.body), std::vector<std::string>(static_cast<size_t>(ranks)));
}

INSTANTIATE_TEST_SUITE_P(Ranks, C10dComm, testing::Combine(testing::Values(1, 2, 4), testing::ValuesIn(suite::cases())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name + std::string("_") + std::to_string(std::get<0>(info.param));
                         });

TEST(C10dMessages, AFaultNamesTheSender) {
  for (const suite::Fault& fault : suite::message_faults()) {
    std::string said = "nothing";
    run_threads(2, fault.deadline_s, [&](Group& world) { suite::play(fault, world, said); });
    EXPECT_EQ(said.substr(0, std::strlen(fault.survivor_says)), fault.survivor_says) << fault.name;
  }
}

TEST(C10dMessages, OneThatNobodyTakesIsAnError) {
  const auto said = run_threads(2, 60, [](Group& world) {
    if (world.rank() == 1) world.send(at::zeros({3}, at::kFloat), 0, 1);
  });
  EXPECT_EQ(said[1], "rank 1: send in group 'world' with rank 0: nobody took the message");
}

TEST(C10dFaults, TheRankThatFailsReportsAndTheOthersHearWhy) {
  const auto said = run_threads(3, 60, [](Group& world) {
    auto line = world.split(0, "line");
    if (world.rank() == 2) throw UserError("data", "is odd", "even data");
    line->barrier();
  });
  EXPECT_EQ(said[2], "data: is odd (even data)");
  for (size_t r : {0u, 1u})
    EXPECT_EQ(said[r], "elsewhere: rank " + std::to_string(r) + ": barrier in group 'line' ended: rank 2 failed: data: is odd (even data)");
}

TEST(C10dFaults, OnlyTheRankThatDoesNotComeIsBlamed) {
  // Rank 1 waits for rank 2, too, and so is not to blame for what rank 0 misses.
  const auto said = run_threads(3, 1.5, [](Group& world) {
    if (world.rank() == 2) std::this_thread::sleep_for(std::chrono::seconds(3));
    world.barrier();
  });
  const std::string& first = said[0].starts_with("elsewhere") ? said[1] : said[0];
  EXPECT_NE(first.find("barrier in group 'world': no sign of rank 2 within 1.5 s"), std::string::npos) << first;
}

/// Alone, or started by scripts/mpi: real processes and a store over TCP, found by the launcher's variables.
TEST(RunC10d, RanksMeetAndConform) {
  if (!mpi_launched()) {
    ::setenv("RANK", "0", 1);
    ::setenv("WORLD_SIZE", "1", 1);
  }
  run_c10d(60, [](Group& world) {
    for (const char* name : {"AllReduceSumsInRankOrder", "AllToAllVMovesRaggedBytes", "SplitGroupsAreIndependent",
                             "TagsAreTakenInAnyOrder", "MessagesStandBesideCollectives"})
      for (const suite::Case& c : suite::cases())
        if (std::string(c.name) == name) c.body(world);
    const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
    EXPECT_EQ(world.size(), size ? std::atoi(size) : 1);
  });
}

TEST(C10dBesideAGroup, CarriesTensorsOfDevices) {
  run_with_devices(3, [](Group& world) {
    ASSERT_EQ(world.nearest_device(), device_of(world));
    device_suite::everything(world, 50'000);  // a store takes no more than 8 MiB at a time
  });
}

TEST(C10dBesideAGroup, TheGroupGoesOnForTensorsOfTheHost) {
  run_with_devices(2, [](Group& world) {
    for (const suite::Case& c : suite::cases()) c.body(world);
  });
}

TEST(C10dBesideAGroup, WhoeverWaitsForADeviceHearsOfAFailureInTheGroup) {
  for (const useconds_t late_us : {0u, 700'000u}) {  // a rank that comes late finds the store of rank 0 gone
    std::vector<std::string> said(3);
    const auto failing = [&](Group& world) {
      if (world.rank() == 1) throw UserError("data", "is odd", "even data");
      if (world.rank() == 2) usleep(late_us);
      at::Tensor one = device_suite::full(world, 1, 1);
      try {
        world.all_reduce(one, ReduceOp::kSum);
      } catch (const PeerError& e) {
        said[static_cast<size_t>(world.rank())] = e.what();
        throw;
      }
    };
    EXPECT_THROW(run_with_devices(3, failing), UserError);
    for (const int r : {0, 2}) {
      const std::string told = "rank " + std::to_string(r) + ": all_reduce in group 'world' ended: rank 1 failed: data: is odd";
      EXPECT_TRUE(said[static_cast<size_t>(r)].starts_with(told)) << said[static_cast<size_t>(r)];
    }
  }
}

// What was begun takes what was queued before it, and is there behind wait(); meanwhile the device does other things.
TEST(C10dBesideAGroup, AReductionGoesOnBesideTheDevice) {
  run_with_devices(2, [](Group& world) {
    connect(world);
    at::Tensor in = device_suite::full(world, 4, 3), out = device_suite::full(world, 2, -1), go = at::full({1}, 1, at::kLong);
    in.add_(1);
    if (world.rank() == 1) world.receive(go, 0, 7);
    const std::unique_ptr<Work> work = world.begin_reduce_scatter(out, in);
    ASSERT_TRUE(work);
    if (world.rank() == 0) {
      EXPECT_EQ((device_suite::full(world, 1, 2) * 5).item<int64_t>(), 10) << "the device has not waited";
      EXPECT_EQ(out.cpu()[0].item<float>(), -1) << "the peer has not begun";
      world.send(go, 1, 7);
    }
    work->wait();
    EXPECT_TRUE(at::equal(out + 1, device_suite::full(world, 2, 9)));
  });
}

// A rank dies while others have begun a sum with it: their device goes on with nothing, and whatever they make of that, they say why.
TEST(C10dBesideAGroup, WhoeverHasBegunASumHearsOfAFailureInTheGroup) {
  for (const bool calls_again : {true, false}) {
    std::mutex mutex;
    std::vector<std::string> said(3);
    const auto failing = [&](Group& world) {
      connect(world);
      at::Tensor one = device_suite::full(world, 1, 1);
      if (world.rank() == 1) throw UserError("data", "is odd", "even data");
      at::Tensor all = device_suite::full(world, 3, 1);
      world.begin_reduce_scatter(one, all)->wait();
      (void)one.cpu();  // ends with the job
      if (calls_again) world.all_reduce(one, ReduceOp::kSum);
      throw UserError("weights", "give no finite logits", "finite ones");
    };
    const auto heard = [&](Group& world) {
      try {
        with_library(world, failing);
      } catch (const std::exception& e) {
        std::lock_guard lock(mutex);
        said[static_cast<size_t>(world.rank())] = e.what();
        throw;
      }
    };
    EXPECT_THROW(run_local(3, 60, heard), UserError);
    EXPECT_EQ(said[1], "data: is odd (even data)");
    const std::string where = calls_again ? "rank 0: all_reduce in group 'world' ended: " : "rank 0 ended: ";
    EXPECT_TRUE(said[0].starts_with(where + "rank 1 failed: data: is odd")) << said[0];
  }
}

// Nobody in the group fails; one does not come to what the other has begun. That one reports it, whatever it made of the numbers.
TEST(C10dBesideAGroup, WhatWasBegunHasADeadline) {
  for (const bool is_peer_error : {false, true}) {
    const auto late = [&](Group& world) {
      connect(world);
      at::Tensor one = device_suite::full(world, 1, 1), all = device_suite::full(world, 2, 1);
      if (world.rank() == 1) {
        while (world.death().empty()) usleep(1000);
        throw EndedByPeer("rank 1 heard of it");
      }
      world.begin_reduce_scatter(one, all)->wait();
      (void)one.cpu();
      if (is_peer_error) throw PeerError("the device failed: an index is out of range");
      throw UserError("weights", "give no finite logits", "finite ones");
    };
    std::string said;
    try {
      run_local(2, 60, [&](Group& world) { with_library(world, late, 4); });
    } catch (const PeerError& e) {
      said = e.what();
    }
    EXPECT_NE(said.find("rank 0: reduce_scatter in group 'world': no sign of rank 1 within 4 s"), std::string::npos) << said;
  }
}

Rendezvous found(std::map<std::string, std::string> variables) {
  return rendezvous([&](const char* name) { return variables.contains(name) ? variables[name].c_str() : nullptr; });
}

TEST(Rendezvous, IsReadFromEachLauncher) {
  const Rendezvous plain = found({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "head"},
                                  {"MASTER_PORT", "4000"}});
  EXPECT_EQ(std::tie(plain.rank, plain.size, plain.local_rank), std::make_tuple(3, 8, 1));
  EXPECT_EQ(plain.host + ":" + std::to_string(plain.port), "head:4000");
  const Rendezvous mpirun = found({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(std::tie(mpirun.rank, mpirun.size, mpirun.local_rank, mpirun.host), std::make_tuple(1, 2, 1, std::string("127.0.0.1")));
  for (const auto& [list, first] : {std::pair("gpu[003-007,12],other1", "gpu003"), {"a,b", "a"}, {"one", "one"}, {"n[7,9]", "n7"}}) {
    const Rendezvous srun = found({{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "16"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_NODELIST", list}});
    EXPECT_EQ(srun.host, first);
    EXPECT_EQ(std::tie(srun.rank, srun.size, srun.local_rank), std::make_tuple(5, 16, 1));
  }
}

TEST(Rendezvous, WhatIsMissingOrWrongIsNamed) {
  const std::map<std::string, std::string> good = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "head"}};
  EXPECT_EQ(found(good).port, 29500);
  for (const auto& [name, value] : {std::pair("RANK", ""), {"RANK", "two"}, {"RANK", "2"}, {"WORLD_SIZE", "0"}, {"LOCAL_RANK", "-1"},
                                    {"MASTER_PORT", "70000"}, {"MASTER_ADDR", nullptr}, {"LOCAL_RANK", nullptr}, {"RANK", nullptr}}) {
    auto bad = good;
    if (value) bad[name] = value;
    else bad.erase(name);
    try {
      found(bad);
      ADD_FAILURE() << name << " " << (value ? value : "missing");
    } catch (const UserError& e) {
      EXPECT_TRUE(std::string(e.what()).starts_with(name)) << e.what();
    }
  }
}

}  // namespace
}  // namespace tandem::comm
