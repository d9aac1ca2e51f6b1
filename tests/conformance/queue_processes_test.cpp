// SPDX-License-Identifier: Apache-2.0
// A queue between real processes: a controller, a trainer, and workers of which one is killed each second and another started. Each sample
// is trained once, with the values that it had where it was made. This process only starts the others, and kills them.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "queue/child.h"
#include "queue/sample_rows.h"
#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/rng.h"
#include "tandem/queue/backend/wire/server.h"
#include "tandem/queue/backend/wire/transport.h"

namespace tandem::queue {
namespace {

using nlohmann::json;

constexpr int64_t kGroupSize = bench::SampleRows::kGroupSize, kGroupsPerStep = 32, kStaleness = 4;
constexpr int kClients = 64;
constexpr double kLeaseS = 2, kDeadlineS = 20, kKillEveryS = 1;
const bench::SampleRows kRows{.seq = 256, .ragged = true, .seed = 7};

struct QueueClient {
  explicit QueueClient(const std::string& place)  // address and token
      : store(bench::SampleRows::fields()),
        transport({.address = place.substr(0, place.find(' ')), .token = place.substr(place.find(' ') + 1), .deadline_s = kDeadlineS},
                  store),
        client(transport, store, {kDeadlineS}) {
    client.join();
  }
  Store store;
  wire::Transport transport;
  Client client;
};

std::vector<SampleId> samples_of(std::span<const GroupId> groups) {
  std::vector<SampleId> samples;
  for (const GroupId group : groups)
    for (int64_t i = 0; i < kGroupSize; ++i) samples.push_back(data::sample_id(group, kGroupSize, i));
  return samples;
}

// Until it is killed.
[[noreturn]] void generate(const std::string& place, uint64_t seed) {
  QueueClient self(place);
  Client& client = self.client;
  RandomStream random(seed, 0);
  std::vector<GroupId> finished;
  for (double beat_s = now_s();;) {
    if (!client.has_joined()) client.join(), finished.clear();
    const PolicyVersion version = client.newest();
    std::vector<Lease> leases;
    for (const Task& task : client.lease(1 + random.below(4), version)) leases.push_back(task.lease);
    std::this_thread::sleep_for(std::chrono::milliseconds(1 + random.below(20)));
    if (!leases.empty()) {
      std::vector<LeaseNumber> numbers;
      std::vector<GroupId> groups;
      std::vector<data::Group> heads;
      for (const Lease& lease : leases) {
        numbers.push_back(lease.number), groups.push_back(lease.group);
        data::Group& head = heads.emplace_back(data::Group{lease.group, {}, version, std::vector<data::Sample>(kGroupSize)});
        for (int64_t i = 0; i < kGroupSize; ++i) {
          head.samples[static_cast<size_t>(i)].id = data::sample_id(lease.group, kGroupSize, i);
          head.samples[static_cast<size_t>(i)].scored = true;
        }
      }
      const std::vector<bool> kept = client.put(numbers, std::move(heads), kRows.columns_of(samples_of(groups)));
      for (size_t i = 0; i < kept.size(); ++i)
        if (kept[i]) finished.push_back(groups[i]);
    }
    if (now_s() - beat_s < kLeaseS / 3) continue;
    beat_s = now_s();
    for (const GroupId group : client.evicted(version, {}, finished, {})) std::erase(finished, group);
  }
}

bench::Child controller() {
  struct Process {
    std::mutex mutex;
    Controller controller{{.groups_per_step = kGroupsPerStep, .group_size = kGroupSize, .staleness = kStaleness},
                          {kLeaseS, Incarnation{0}}};
    Desk desk{controller, Incarnation{0}, ""};
    wire::Server server{desk, mutex, "tcp://127.0.0.1:0"};
  };
  return bench::Child([]() -> bench::Child::Serve {
    const auto process = std::make_shared<Process>();
    return [process](const json&) {
      const std::lock_guard lock(process->mutex);
      if (process->server.fault()) std::rethrow_exception(process->server.fault());
      const LeaseCounters& counts = process->controller.lease_counters();
      const Counters& groups = process->controller.queue().counters();
      return json{{"place", process->server.address() + " " + process->server.token()},
                  {"ended", counts.ended}, {"lost", counts.lost}, {"late", counts.late},
                  {"started", groups.started}, {"trained", groups.trained}, {"dropped", groups.dropped},
                  {"outstanding", process->controller.queue().num_outstanding()}};
    };
  });
}

// Trains so many samples. Answers with the number of groups that it trained and that left untrained.
bench::Child trainer() {
  return bench::Child([]() -> bench::Child::Serve {
    return [](const json& request) {
      QueueClient self(request.at("place"));
      TensorCache rows(bench::SampleRows::fields());
      std::set<GroupId> trained, left;
      int64_t step = 0, unread = 0, max_lag = 0;
      for (const Deadline end = Deadline::after_s(request.at("deadline_s")); std::ssize(trained) * kGroupSize < request.at("samples");) {
        TANDEM_CHECK(!end.passed(), "only ", trained.size(), " groups are trained");
        if (!self.client.has_joined()) self.client.join();
        const std::optional<data::Batch> batch = self.client.take(StepId{step + 1}, PolicyVersion{step});
        if (!batch) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          continue;
        }
        if (!self.client.read(rows)) {
          ++unread;
          continue;
        }
        TANDEM_CHECK(batch->groups.size() == kGroupsPerStep, batch->groups.size(), " groups");
        for (const data::Group& head : batch->groups) {
          TANDEM_CHECK(trained.insert(head.id).second && !left.contains(head.id), "group ", value(head.id), " twice");
          max_lag = std::max(max_lag, data::lag(head, PolicyVersion{step}));
          for (const data::Sample& sample : head.samples) kRows.check(bench::row_of(rows, sample.id));
        }
        rows.drop(data::ids_of(batch->groups));
        ++step;
        for (const GroupId group : self.client.commit(StepId{step}, PolicyVersion{step}))
          TANDEM_CHECK(left.insert(group).second && !trained.contains(group), "group ", value(group), " left untrained, twice");
      }
      return json{{"trained", trained.size()}, {"left", left.size()}, {"unread", unread}, {"max_lag", max_lag}};
    };
  });
}

bench::Child worker(const std::string& place, uint64_t seed) {
  return bench::Child([place, seed]() -> bench::Child::Serve { generate(place, seed); });
}

TEST(QueueProcesses, WorkersAreKilledAndEachSampleIsTrainedOnce) {
  const char* const wanted = std::getenv("TANDEM_QUEUE_SAMPLES");  // 100000 takes a minute or two
  const int64_t samples = wanted ? std::atoll(wanted) : 20'000;
  bench::Child queue = controller(), training = trainer();
  const std::string place = queue.ask({}).at("place");
  std::vector<bench::Child> workers;
  uint64_t seed = 0;
  for (int i = 0; i < kClients; ++i) workers.push_back(worker(place, seed++));
  training.send({{"place", place}, {"samples", samples}, {"deadline_s", 250.0}});
  RandomStream random(26, 11);
  int64_t kills = 0;
  json report;
  for (const double begin_s = now_s(); !training.try_receive(kKillEveryS, report);) {
    ASSERT_LT(now_s() - begin_s, 280);
    const auto victim = static_cast<size_t>(random.below(kClients));
    workers[victim] = worker(place, seed++);
    ++kills;
  }
  const json counts = queue.ask({});
  std::printf("%lld kills: %s, %s\n", static_cast<long long>(kills), report.dump().c_str(), counts.dump().c_str());
  EXPECT_GT(kills, 0);
  EXPECT_GE(report.at("trained").get<int64_t>() * kGroupSize, samples);
  EXPECT_LE(report.at("max_lag").get<int64_t>(), kStaleness);
  EXPECT_EQ(counts.at("trained"), report.at("trained"));
  EXPECT_EQ(counts.at("dropped"), report.at("left"));
  EXPECT_EQ(counts.at("started").get<int64_t>(),
            counts.at("trained").get<int64_t>() + counts.at("dropped").get<int64_t>() + counts.at("outstanding").get<int64_t>());
}

}  // namespace
}  // namespace tandem::queue
