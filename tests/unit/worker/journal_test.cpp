// SPDX-License-Identifier: Apache-2.0
// The journal of a controller: what it says of a start that is gone, whatever was cut short, and what a disk that is full does.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/worker/journal.h"
#include "tests/temporary_folder.h"

namespace tandem::worker {
namespace {

using data::GroupId, data::PolicyVersion, data::StepId;
using nlohmann::json;
using queue::Controller, queue::Decision, queue::Incarnation, queue::Lease, queue::LeaseNumber, queue::WorkerId;

constexpr int64_t kGroupSize = 2;

data::Group finished_group(GroupId id, PolicyVersion version) {
  data::Group group{id, {}, version, std::vector<data::Sample>(kGroupSize)};
  for (int64_t i = 0; i < kGroupSize; ++i) {
    group.samples[static_cast<size_t>(i)].id = data::sample_id(id, kGroupSize, i);
    group.samples[static_cast<size_t>(i)].scored = true;
  }
  return group;
}

// A controller whose decisions are written down, and a worker that has all its leases.
struct Job {
  Job(const std::string& path, int64_t incarnation, int64_t version)
      : journal(path, Incarnation{incarnation}, PolicyVersion{version}),
        controller({.groups_per_step = 2, .group_size = kGroupSize, .staleness = 1}, {1e9, Incarnation{incarnation}}) {
    controller.tell([this](const Decision& decision) { journal.add(decision); });
    worker = controller.join(0);
  }
  std::vector<Lease> lease(int64_t most) { return controller.lease(worker, most, controller.queue().version(), 0); }
  void finish(const Lease& lease) {
    EXPECT_TRUE(controller.put(worker, lease.number, finished_group(lease.group, controller.queue().version())));
  }
  void step(int64_t number) {
    for (const Lease& each : lease(2)) finish(each);
    (void)controller.take(StepId{number});
    (void)controller.commit(StepId{number}, PolicyVersion{number});
  }

  Journal journal;
  Controller controller;
  WorkerId worker{};
};

class JournalTest : public testing::Test {
 protected:
  Undone since(int64_t version) const { return undone_since(path_, PolicyVersion{version}); }

  const test::TemporaryFolder folder_{"journal"};
  const std::string path_ = folder_ / "controller.jsonl";
};

std::vector<json> lines_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST_F(JournalTest, NothingIsUndoneWhereNothingWas) { EXPECT_FALSE(since(0).any()); }

TEST_F(JournalTest, WhatCameBehindTheSavedStateIsUndone) {
  {
    Job job(path_, 1, 0);
    job.step(1);
    job.journal.add_saved(PolicyVersion{1});
    job.step(2);
    job.step(3);
    const std::vector<Lease> leases = job.lease(2);
    ASSERT_EQ(leases.size(), 2U);
    job.finish(leases[0]);
  }
  EXPECT_EQ(since(1).updates, 2);
  EXPECT_EQ(since(1).finished, 5);
  EXPECT_EQ(since(1).leases, 1);
  EXPECT_EQ(since(0).updates, 3);
  {
    const Job job(path_, 2, 1);
    EXPECT_EQ(job.journal.undone().updates, 2);
  }
  EXPECT_FALSE(since(1).any());  // the second start said it, and did nothing
}

// Each group leaves once: trained, dropped or filtered.
TEST_F(JournalTest, TheDecisionsTellWhatBecameOfEachGroup) {
  {
    Job job(path_, 1, 0);
    for (int64_t step = 1; step <= 4; ++step) job.step(step);
    const std::vector<Lease> leases = job.lease(2);
    job.finish(leases.at(0));
    const GroupId gone = leases.at(0).group;
    job.controller.lose({&gone, 1});
    job.controller.leave(job.worker);
  }
  std::map<int64_t, std::vector<std::string>> of_group;
  int64_t last_step = 0;
  for (const json& line : lines_of(path_)) {
    for (const char* const what : {"leased", "finished", "taken", "ended", "lost"})
      if (line.contains(what)) of_group[line[what]].push_back(what);
    if (line.contains("committed")) {
      EXPECT_EQ(line["committed"], ++last_step);
    }
  }
  EXPECT_EQ(last_step, 4);
  using Story = std::vector<std::string>;
  for (int64_t group = 0; group < 8; ++group) EXPECT_EQ(of_group[group], (Story{"leased", "finished", "taken"})) << group;
  EXPECT_EQ(of_group[8], (Story{"leased", "finished", "lost"}));
  EXPECT_EQ(of_group[9], (Story{"leased", "ended"}));
}

TEST_F(JournalTest, ADamagedLineIsNoObstacle) {
  { Job(path_, 1, 0).step(1); }
  std::ofstream(path_, std::ios::app) << std::string(9, '\0') << "\n{\"committed\":2,\"version\":2}\n";
  EXPECT_EQ(since(0).updates, 2);
  const Job job(path_, 2, 0);
  EXPECT_EQ(job.journal.undone().updates, 2);
}

TEST_F(JournalTest, ALineThatWasCutShortGoes) {
  { Job(path_, 1, 0).step(1); }
  const size_t whole = lines_of(path_).size();
  std::ofstream(path_, std::ios::app) << "{\"leased\":77,\"le";
  EXPECT_EQ(since(0).leases, 0);
  { Job job(path_, 2, 0); }
  const std::vector<json> lines = lines_of(path_);
  ASSERT_EQ(lines.size(), whole + 1);
  EXPECT_EQ(lines.back()["opened"], 2);
}

TEST_F(JournalTest, MoreThanItMayHaveGoesIntoAnother) {
  {
    Journal journal(path_, Incarnation{1}, PolicyVersion{0}, 1000);
    for (int64_t i = 0; i < 100; ++i) {
      journal.add({.what = Decision::What::kLeased, .group = GroupId{i}, .lease = LeaseNumber{i}});
      journal.wait_written();
    }
  }
  EXPECT_TRUE(std::filesystem::exists(path_ + ".old"));
  EXPECT_LT(std::filesystem::file_size(path_), 1100U);
  EXPECT_EQ(since(0).leases, std::ssize(lines_of(path_)) + std::ssize(lines_of(path_ + ".old")));  // the first line is gone by now
}

TEST_F(JournalTest, ManyDecisionsGoToTheDiskAtOnce) {
  constexpr int64_t kEach = 5000;
  Journal journal(path_, Incarnation{1}, PolicyVersion{0});
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t)
    threads.emplace_back([&journal, t] {
      for (int64_t i = 0; i < kEach; ++i) journal.add({.what = Decision::What::kLost, .group = GroupId{t * kEach + i}});
    });
  for (std::thread& thread : threads) thread.join();
  journal.wait_written();
  EXPECT_LT(journal.num_syncs(), 2 * kEach);
  std::set<int64_t> seen;
  for (const json& line : lines_of(path_))
    if (line.contains("lost")) {
      EXPECT_TRUE(seen.insert(line["lost"].get<int64_t>()).second);
    }
  EXPECT_EQ(std::ssize(seen), 4 * kEach);
}

TEST_F(JournalTest, ADiskWithoutRoomIsSaidByWhoWaits) {
  Journal journal(path_, Incarnation{1}, PolicyVersion{0});
  journal.wait_written();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{64, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  for (int64_t i = 0; i < 10; ++i) journal.add({.what = Decision::What::kLost, .group = GroupId{i}});
  EXPECT_THROW(journal.wait_written(), UserError);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old);
}

}  // namespace
}  // namespace tandem::worker
