// SPDX-License-Identifier: Apache-2.0
// The same stories for every way to reach a queue.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "tests/in_memory_queue.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/queue/backend/wire/server.h"
#include "tandem/queue/backend/wire/transport.h"

namespace tandem::queue {
namespace {

constexpr double kLeaseS = 1.5, kDeadlineS = 30;
constexpr int64_t kGroupSize = 2;
constexpr const char* kWelcome = "a recipe";

data::Prompt prompt_of(GroupId group) { return {.text = join_text("prompt ", value(group))}; }

Options options(int64_t staleness) { return {.groups_per_step = 4, .group_size = kGroupSize, .staleness = staleness}; }

/// One client with what it stands on.
struct Member {
  std::unique_ptr<Store> store;
  Store* held = nullptr;  // that, or the rank's
  std::string welcome;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Client> client;
  Client* operator->() const { return client.get(); }
};

std::vector<CacheField> body_fields() { return {{"tokens", std::vector<int64_t>()}, {"logprobs", std::vector<float>()}}; }

/// A queue that clients can come to.
class Cluster {
 public:
  virtual ~Cluster() = default;
  /// The run is over. Returns what clients said that failed with them.
  virtual std::vector<std::string> end() = 0;
  virtual Member member() {
    Member m;
    m.store = std::make_unique<Store>(body_fields());
    m.held = m.store.get();
    m.transport = transport(*m.store);
    m.client = std::make_unique<Client>(*m.transport, *m.store, ClientOptions{kDeadlineS});
    return joined(std::move(m));
  }

 protected:
  static Member joined(Member m) {
    EXPECT_FALSE(m->has_joined());
    EXPECT_TRUE(m->lease(1, PolicyVersion{0}).empty()) << "it has not joined";
    m.welcome = m->join();
    return m;
  }

 private:
  virtual std::unique_ptr<Transport> transport(const Store&) { return nullptr; }
};

class InMemory final : public Cluster {
 public:
  explicit InMemory(const Options& options) : queue_(options, kLeaseS, prompt_of, kWelcome) {}
  std::vector<std::string> end() override { return queue_.end(); }

 private:
  std::unique_ptr<Transport> transport(const Store& own) override { return std::make_unique<InMemoryTransport>(queue_, own); }
  InMemoryQueue queue_;
};

class Wire final : public Cluster {
 public:
  explicit Wire(const Options& options)
      : controller_(options, {kLeaseS, Incarnation{0}}),
        desk_(controller_, Incarnation{0}, "", prompt_of, kWelcome),
        server_(desk_, mutex_, "tcp://127.0.0.1:0") {}
  std::vector<std::string> end() override {
    std::lock_guard lock(mutex_);
    desk_.end();
    return desk_.take_failures();
  }

 private:
  std::unique_ptr<Transport> transport(const Store& own) override {
    return std::make_unique<wire::Transport>(wire::TransportOptions{.address = server_.address(), .token = server_.token(),
                                                                    .deadline_s = 5}, own);
  }
  std::mutex mutex_;
  Controller controller_;
  Desk desk_;
  wire::Server server_;
};

using MakeCluster = std::function<std::unique_ptr<Cluster>(const Options&)>;
struct Backend {
  std::string name;
  MakeCluster make;
};

class Conformance : public testing::TestWithParam<Backend> {
 protected:
  std::unique_ptr<Cluster> cluster(int64_t staleness) const { return GetParam().make(options(staleness)); }
};

std::vector<data::Group> heads_of(std::span<const Lease> leases, PolicyVersion version) {
  std::vector<data::Group> heads;
  for (const Lease& lease : leases) {
    data::Group& head = heads.emplace_back(data::Group{lease.group, {}, version, std::vector<data::Sample>(kGroupSize)});
    for (int64_t i = 0; i < kGroupSize; ++i) {
      head.samples[static_cast<size_t>(i)].id = data::sample_id(lease.group, kGroupSize, i);
      head.samples[static_cast<size_t>(i)].scored = true;
      head.samples[static_cast<size_t>(i)].score = static_cast<double>(value(lease.group));
    }
  }
  return heads;
}

// Its number of tokens and what they are tell which sample it is. Some batches are large enough to be read in place.
int64_t num_tokens(int64_t sample) { return sample % 7 * (sample % 3 == 0 ? 1 : 2500); }

data::Fields bodies_of(std::span<const GroupId> groups) {
  data::Fields fields;
  std::vector<int64_t> tokens, lengths;
  std::vector<float> logprobs;
  for (const GroupId group : groups)
    for (int64_t i = 0; i < kGroupSize; ++i) {
      const int64_t sample = value(data::sample_id(group, kGroupSize, i));
      lengths.push_back(num_tokens(sample));
      tokens.insert(tokens.end(), static_cast<size_t>(num_tokens(sample)), sample);
      logprobs.insert(logprobs.end(), static_cast<size_t>(num_tokens(sample)), -static_cast<float>(sample));
    }
  fields["tokens"] = {std::move(tokens), lengths};
  fields["logprobs"] = {std::move(logprobs), lengths};
  return fields;
}

std::vector<GroupId> groups_of(std::span<const Lease> leases) {
  std::vector<GroupId> groups;
  for (const Lease& lease : leases) groups.push_back(lease.group);
  return groups;
}

std::vector<bool> put_all(Client& client, std::span<const Lease> leases, PolicyVersion version) {
  std::vector<LeaseNumber> numbers;
  for (const Lease& lease : leases) numbers.push_back(lease.number);
  return client.put(numbers, heads_of(leases, version), bodies_of(groups_of(leases)));
}

// Leases until it has so many.
std::vector<Lease> lease_all(Client& client, int64_t count, PolicyVersion version) {
  std::vector<Lease> leases;
  for (const Deadline deadline = Deadline::after_s(kDeadlineS); std::ssize(leases) < count && !deadline.passed();) {
    for (const Task& task : client.lease(count - std::ssize(leases), version)) leases.push_back(task.lease);
    if (std::ssize(leases) < count) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(std::ssize(leases), count);
  return leases;
}

// All of the batch is there, and nothing else; then it is dropped.
void check_bodies(const data::Batch& batch, TensorCache& bodies) {
  const std::vector<SampleId> samples = data::ids_of(batch.groups);
  EXPECT_EQ(bodies.num_held(), std::ssize(samples));
  for (const SampleId id : samples) {
    const auto length = static_cast<size_t>(num_tokens(value(id)));
    EXPECT_TRUE(std::ranges::equal(bodies.read<int64_t>(id, 0), std::vector<int64_t>(length, value(id))));
    EXPECT_TRUE(std::ranges::equal(bodies.read<float>(id, 1), std::vector<float>(length, -static_cast<float>(value(id)))));
  }
  bodies.drop(samples);
}

constexpr PolicyVersion kFirst{0};

TEST_P(Conformance, AStepGoesFromLeaseToCommit) {
  const auto queue = cluster(0);
  const Member generator = queue->member(), trainer = queue->member();
  EXPECT_FALSE(trainer->take(StepId{1}, kFirst));
  const std::vector<Lease> leases = lease_all(*generator.client, 4, kFirst);
  EXPECT_TRUE(generator->lease(1, kFirst).empty()) << "no more may start";
  EXPECT_EQ(put_all(*generator.client, leases, kFirst), std::vector<bool>(4, true));
  const std::optional<data::Batch> batch = trainer->take(StepId{1}, kFirst);
  ASSERT_TRUE(batch);
  ASSERT_EQ(batch->groups.size(), 4u);
  EXPECT_EQ(batch->groups[3].samples[1].score, 3.0);
  TensorCache bodies(body_fields());
  ASSERT_TRUE(trainer->read(bodies));
  check_bodies(*batch, bodies);
  EXPECT_EQ(generator.held->num_held(), 4 * kGroupSize);
  EXPECT_TRUE(trainer->commit(StepId{1}, PolicyVersion{1}).empty());
  const auto over = generator->evicted(kFirst, {}, groups_of(leases), {});
  EXPECT_EQ(over.size(), 4u) << "they are trained";
  EXPECT_TRUE(generator->has_joined());
  EXPECT_EQ(generator.held->num_held(), 0);
  EXPECT_EQ(generator->newest(), PolicyVersion{1});
  EXPECT_THROW((void)trainer->commit(StepId{1}, PolicyVersion{2}), PeerError) << "it is not taken";
}

TEST_P(Conformance, WhatOneLeavesAnotherGenerates) {
  const auto queue = cluster(0);
  const Member first = queue->member(), second = queue->member(), third = queue->member();
  const std::vector<Lease> leases = lease_all(*first.client, 4, kFirst);
  EXPECT_EQ(put_all(*first.client, std::span(leases).first(1), kFirst), std::vector<bool>{true});
  first->close();
  const std::vector<Lease> again = lease_all(*second.client, 3, kFirst);
  EXPECT_EQ(groups_of(again), (std::vector{GroupId{1}, GroupId{2}, GroupId{3}}));
  EXPECT_EQ(put_all(*first.client, std::span(leases).subspan(1, 1), kFirst), std::vector<bool>{false}) << "it has left";
  EXPECT_FALSE(first->has_joined());
  EXPECT_EQ(first.held->num_held(), kGroupSize) << "the group that it put before";
  // The second is silent for longer than a lease.
  const std::vector<Lease> once_more = lease_all(*third.client, 3, kFirst);
  EXPECT_EQ(groups_of(once_more), groups_of(again));
  EXPECT_EQ(put_all(*second.client, again, kFirst), std::vector<bool>(3, false));
  (void)second->join();
  EXPECT_EQ(put_all(*third.client, once_more, kFirst), std::vector<bool>(3, true));
  ASSERT_TRUE(second->take(StepId{1}, kFirst));
}

// Tokens, log-probabilities and versions of a group that is half done, as another goes on with it.
TEST_P(Conformance, WhatWasReportedGoesOnElsewhere) {
  const auto queue = cluster(0);
  const Member first = queue->member(), second = queue->member();
  const std::vector<Lease> leases = lease_all(*first.client, 2, kFirst);
  data::Group begun{leases[1].group, {}, kFirst, std::vector<data::Sample>(kGroupSize)};
  for (int64_t i = 0; i < kGroupSize; ++i) begun.samples[static_cast<size_t>(i)].id = data::sample_id(begun.id, kGroupSize, i);
  begun.samples[0].ids = {5, 6, 7}, begun.samples[0].logprobs = {-1, -2, -3}, begun.samples[0].versions = {0, 0, 0};
  const Standing standings[] = {{leases[0].group, leases[0].number, true, false}, {leases[1].group, leases[1].number, true, true}};
  EXPECT_THROW((void)first->evicted(kFirst, standings, {}, {}), PeerError) << "it says that tokens are reported, and has none";
  EXPECT_TRUE(first->evicted(kFirst, standings, {}, {begun}).empty());
  first->close();
  const std::vector<Task> again = second->lease(2, kFirst);
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].prompt.text, "prompt 0");
  EXPECT_EQ(again[1].prompt.text, "prompt 1");
  EXPECT_TRUE(again[0].begun.empty());
  ASSERT_EQ(again[1].begun.size(), static_cast<size_t>(kGroupSize));
  EXPECT_EQ(again[1].begun[0].ids, begun.samples[0].ids);
  EXPECT_EQ(again[1].begun[0].logprobs, begun.samples[0].logprobs);
  EXPECT_EQ(again[1].begun[0].versions, begun.samples[0].versions);
  EXPECT_TRUE(again[1].begun[1].ids.empty());
}

TEST_P(Conformance, ABodyThatIsGoneIsGeneratedAnew) {
  const auto queue = cluster(0);
  const Member generator = queue->member(), trainer = queue->member();
  const std::vector<Lease> leases = lease_all(*generator.client, 4, kFirst);
  (void)put_all(*generator.client, leases, kFirst);
  const SampleId gone = data::sample_id(GroupId{2}, kGroupSize, 1);
  generator.held->drop({&gone, 1});
  ASSERT_TRUE(trainer->take(StepId{1}, kFirst));
  TensorCache bodies(body_fields());
  EXPECT_FALSE(trainer->read(bodies));
  EXPECT_EQ(bodies.num_held(), 0);
  EXPECT_FALSE(trainer->take(StepId{1}, kFirst));
  const std::vector<Lease> again = lease_all(*generator.client, 4, kFirst);
  EXPECT_EQ(put_all(*generator.client, again, kFirst), std::vector<bool>(4, true));
  const std::optional<data::Batch> batch = trainer->take(StepId{1}, kFirst);
  ASSERT_TRUE(batch);
  ASSERT_TRUE(trainer->read(bodies));
  check_bodies(*batch, bodies);
}

// It trains for longer than a lease: it is given up, and its batch is its own still.
TEST_P(Conformance, EveryVerbHearsThatTheRunIsOver) {
  const std::unique_ptr<Cluster> all = cluster(0);
  Member worker = all->member(), idle = all->member();
  EXPECT_EQ(worker.welcome, kWelcome);
  EXPECT_EQ(worker->lease(1, PolicyVersion{0}).size(), 1u);
  idle->close("no disk");
  const std::vector<std::string> failures = all->end();
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_TRUE(failures[0].ends_with(": no disk")) << failures[0] << ": who it was comes first";
  EXPECT_FALSE(worker->has_ended()) << "it has not asked";
  EXPECT_TRUE(worker->lease(1, PolicyVersion{0}).empty());
  EXPECT_TRUE(worker->has_ended());
  EXPECT_FALSE(worker->has_joined());
  EXPECT_EQ(idle->join(), "");
  EXPECT_TRUE(idle->has_ended()) << "who joins now hears it, too";
}

TEST_P(Conformance, ATrainerMayTakeItsTime) {
  const auto queue = cluster(0);
  const Member generator = queue->member(), trainer = queue->member();
  (void)put_all(*generator.client, lease_all(*generator.client, 4, kFirst), kFirst);
  EXPECT_THROW((void)trainer->take(StepId{1}, PolicyVersion{7}), PeerError) << "an update of weights that the queue does not know";
  ASSERT_TRUE(trainer->take(StepId{1}, kFirst));
  const Deadline end = Deadline::after_s(2 * kLeaseS);
  while (!end.passed()) {
    (void)generator->evicted(kFirst, {}, {}, {});
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_THROW((void)generator->commit(StepId{1}, PolicyVersion{1}), PeerError) << "another's batch";
  EXPECT_TRUE(trainer->commit(StepId{1}, PolicyVersion{1}).empty());
}

// Generators in threads of their own, some slower, one that dies; a trainer beside them.
TEST_P(Conformance, ManyGenerateAndOneTrains) {
  constexpr int64_t kSteps = 25, kStaleness = 1;
  const auto queue = cluster(kStaleness);
  std::atomic<bool> is_over = false;
  std::vector<Member> generators;
  for (int i = 0; i < 4; ++i) generators.push_back(queue->member());
  const auto generate = [&](size_t me) {
    Member& m = generators[me];
    std::vector<GroupId> finished;
    for (int64_t round = 0; !is_over; ++round) {
      if (!m->has_joined()) {
        (void)m->join();
        finished.clear();
      }
      const PolicyVersion version = m->newest();
      std::vector<Lease> leases;
      for (const Task& task : m->lease(2, version)) leases.push_back(task.lease);
      if (me == 3 && round == 5) return;  // with its leases
      std::this_thread::sleep_for(std::chrono::milliseconds(1 + 2 * me));
      if (!leases.empty()) {
        const std::vector<bool> kept = put_all(*m.client, leases, version);
        for (size_t i = 0; i < kept.size(); ++i)
          if (kept[i]) finished.push_back(leases[i].group);
      }
      for (const GroupId group : m->evicted(version, {}, finished, {})) std::erase(finished, group);
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < generators.size(); ++i) threads.emplace_back(generate, i);
  const Member trainer = queue->member();
  TensorCache bodies(body_fields());
  std::set<GroupId> trained;
  int64_t step = 0;
  for (const Deadline deadline = Deadline::after_s(kDeadlineS); step < kSteps && !deadline.passed();) {
    if (!trainer->has_joined()) (void)trainer->join();
    const std::optional<data::Batch> batch = trainer->take(StepId{step + 1}, PolicyVersion{step});
    if (!batch) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    if (!trainer->read(bodies)) continue;
    check_bodies(*batch, bodies);
    for (const data::Group& head : batch->groups) {
      EXPECT_TRUE(trained.insert(head.id).second) << value(head.id) << " twice";
      EXPECT_LE(data::lag(head, PolicyVersion{step}), kStaleness);
    }
    ++step;
    for (const GroupId group : trainer->commit(StepId{step}, PolicyVersion{step})) EXPECT_FALSE(trained.contains(group));
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(step, kSteps);
}

TEST(Client, WhoIsAskedToStopStillHearsTheAnswerToItsLastWords) {
  InMemoryQueue queue(options(0), kLeaseS, prompt_of, kWelcome);
  Store store(body_fields());
  InMemoryTransport transport(queue, store);
  bool stop = false;
  Client client(transport, store, {kDeadlineS, [&stop] { return stop; }});
  (void)client.join();
  const Task task = client.lease(1, kFirst).at(0);
  stop = true;
  EXPECT_TRUE(client.evicted(kFirst, std::vector<Standing>{{task.lease.group, task.lease.number}}, {}, {}).empty());
  EXPECT_NO_THROW(client.close("it is late"));
  EXPECT_EQ(queue.end(), std::vector<std::string>{"store: it is late"});
}

TEST(WireStore, LendsItsRowsOnOneMachineAndSendsThemElsewhere) {
  constexpr int64_t kReads = 40;  // more than it has lanes
  const std::vector<GroupId> groups{GroupId{1}, GroupId{2}};
  std::vector<SampleId> samples;
  for (const GroupId group : groups)
    for (int64_t i = 0; i < kGroupSize; ++i) samples.push_back(data::sample_id(group, kGroupSize, i));
  const std::vector<std::byte> bodies = data::pack(bodies_of(groups));
  Store store(body_fields());
  store.put(samples, bodies_of(groups));
  const wire::StoreServer server(store, "tcp://127.0.0.1:0");
  wire::StoreReader reader(kDeadlineS);
  std::vector<std::unique_ptr<TensorCache>> caches;
  const auto check = [&](TensorCache& cache) {
    for (const SampleId id : samples) {
      const std::vector<int64_t> expected(static_cast<size_t>(num_tokens(value(id))), value(id));
      EXPECT_TRUE(std::ranges::equal(cache.read<int64_t>(id, 0), expected));
    }
  };
  for (int64_t i = 0; i < kReads; ++i) {
    caches.push_back(std::make_unique<TensorCache>(body_fields()));
    ASSERT_TRUE(reader.read(server.place(), samples, *caches.back()));
    check(*caches.back());
  }
  for (const auto& cache : caches) check(*cache);
  EXPECT_GT(server.bytes_lent(), kReads * std::ssize(bodies) / 2);
  EXPECT_LT(server.bytes_sent(), kReads * 1000);
  EXPECT_EQ(reader.bytes_received(), server.bytes_sent());
  TensorCache other({{"tokens", std::vector<int64_t>()}});
  EXPECT_FALSE(reader.read(server.place(), samples, other)) << "it has other fields";
  // Through a name that does not say that it is this machine.
  std::string place = server.place();
  place.replace(place.find("127.0.0.1"), 9, "localhost.");
  wire::StoreReader far(kDeadlineS);
  const int64_t sent = server.bytes_sent();
  if (TensorCache cache(body_fields()); far.read(place, samples, cache)) {
    check(cache);
    EXPECT_GT(server.bytes_sent() - sent, std::ssize(bodies) / 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Conformance,
                         testing::Values(Backend{"in_memory", [](const Options& o) { return std::make_unique<InMemory>(o); }},
                                         Backend{"wire", [](const Options& o) { return std::make_unique<Wire>(o); }}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem::queue
