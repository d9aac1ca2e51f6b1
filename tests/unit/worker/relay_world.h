// SPDX-License-Identifier: Apache-2.0
#pragma once
// What stands around a relay in its test: a run, workers, and lines between them, under a clock of the test's own. Calls go through bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tandem/queue/client.h"
#include "tandem/queue/body/store.h"
#include "tandem/worker/relay.h"

namespace tandem::worker {

using data::GroupId, data::PolicyVersion, data::StepId;
using queue::Desk, queue::Incarnation, queue::LeaseNumber;

constexpr double kLeaseS = 9, kTickS = 0.05;
constexpr int64_t kGroupSize = 2, kTokens = 4;
constexpr const char* kWelcome = "a recipe";

inline queue::Options options(int64_t groups, int64_t staleness) {
  return {.groups_per_step = groups, .group_size = kGroupSize, .staleness = staleness};
}

/// What all share.
struct World {
  double now_s = 0;
  std::map<std::string, const queue::Store*> stores;
  int64_t num_stores_ever = 0, num_incarnations = 0;

  bool read(const std::string& store, std::span<const data::SampleId> samples, queue::TensorCache& into) const {
    const auto found = stores.find(store);
    return found != stores.end() && found->second->copy(samples, into);
  }
};

using DeskOf = std::function<Desk&()>;

/// To a desk of this process.
class Line final : public queue::Transport {
 public:
  Line(World& world, DeskOf desk, const queue::Store& own)
      : world_(world), desk_(std::move(desk)), own_("store " + std::to_string(world.num_stores_ever++)) {
    world_.stores[own_] = &own;
  }
  ~Line() override { world_.stores.erase(own_); }

  void send(const queue::Call& call) override {
    const auto answer = desk_().answer(queue::call_of(queue::to_bytes(call)), world_.now_s);
    if (answer) answer_ = queue::answer_of(queue::to_bytes(*answer));
  }
  std::optional<queue::Answer> receive(double) override { return std::exchange(answer_, std::nullopt); }
  bool read(const std::string& store, std::span<const data::SampleId> samples, queue::TensorCache& into) override {
    return world_.read(store, samples, into);
  }
  const std::string& own_store() const override { return own_; }
  std::string name() const override { return "queue"; }

 private:
  World& world_;
  const DeskOf desk_;
  const std::string own_;
  std::optional<queue::Answer> answer_;
};

/// A client of a desk, with a store.
struct End {
  End(World& world, DeskOf desk) : store(queue::body_fields()), line(world, std::move(desk), store), client(line, store, {5}) {}
  queue::Store store;
  Line line;
  queue::Client client;
};

/// What a worker does, with tokens that say which of their sample they are.
class TestWorker : public End {
 public:
  using End::End;

  void join() {
    (void)client.join();
    if (!client.has_joined()) return;
    work.clear();
    version = client.newest();
  }
  void ask(int64_t most) {
    if (!client.has_joined() && !client.has_ended()) join();
    for (queue::Task& task : client.lease(most, version)) {
      const GroupId id = task.lease.group;
      EXPECT_FALSE(work.contains(id)) << "group " << value(id) << " twice at one worker";
      EXPECT_EQ(task.prompt.text, "prompt " + std::to_string(value(id)));
      finished.erase(id);
      data::Group group{id, task.prompt, {}, std::move(task.begun)};
      if (group.samples.empty()) group.samples.resize(kGroupSize);
      for (int64_t i = 0; i < kGroupSize; ++i) group.samples[static_cast<size_t>(i)].id = data::sample_id(id, kGroupSize, i);
      work[id] = {task.lease.number, std::move(group)};
    }
  }
  /// A token for each sample.
  void draw() {
    for (auto& [id, one] : work)
      for (data::Sample& sample : one.group.samples) {
        if (std::ssize(sample.ids) < kTokens) {
          sample.ids.push_back(static_cast<int32_t>(sample.ids.size()));
          sample.logprobs.push_back(-1);
          sample.versions.push_back(value(version));
        }
        one.group.version = PolicyVersion{sample.versions.front()};
      }
  }
  /// Puts what has all its tokens. Returns how many of them are of use.
  int64_t put() {
    std::vector<LeaseNumber> leases;
    std::vector<data::Group> groups, heads;
    for (auto& [id, one] : work) {
      if (std::ssize(one.group.samples.front().ids) < kTokens) continue;
      for (data::Sample& sample : one.group.samples) sample.scored = true, sample.finish = data::FinishReason::kLength;
      leases.push_back(one.lease);
      heads.push_back(queue::head_of(one.group));
      groups.push_back(one.group);
      groups.back().prompt.text.clear();  // the run has its own
    }
    for (const data::Group& group : groups) work.erase(group.id);
    if (groups.empty()) return 0;
    const std::vector<bool> kept = client.put(leases, heads, data::fields_of(groups));
    for (size_t i = 0; i < kept.size(); ++i)
      if (kept[i]) finished.insert(heads[i].id);
    return std::ranges::count(kept, true);
  }
  /// Returns what is over.
  std::vector<GroupId> beat() {
    std::vector<queue::Standing> standings;
    std::vector<data::Group> reported;
    for (const auto& [id, one] : work) {
      const bool has_token = !one.group.samples.front().ids.empty();
      standings.push_back({id, one.lease, has_token, has_token});
      if (!has_token) continue;
      data::Group& copy = reported.emplace_back(one.group);
      copy.prompt = {};
      for (data::Sample& sample : copy.samples) sample.finish = data::FinishReason::kAborted;
    }
    const std::vector<GroupId> all(finished.begin(), finished.end());
    std::vector<GroupId> over = client.evicted(version, standings, all, std::move(reported));
    for (const GroupId id : over) work.erase(id), finished.erase(id);
    return over;
  }
  std::vector<GroupId> groups() const {
    std::vector<GroupId> ids;
    for (const auto& [id, one] : work) ids.push_back(id);
    return ids;
  }

  struct One {
    LeaseNumber lease{};
    data::Group group;
  };
  std::map<GroupId, One> work;
  std::set<GroupId> finished;
  PolicyVersion version{0};
};

/// The run: a controller with a desk, and what it trained.
struct Trainer {
  Trainer(World& world, const queue::Options& o, int64_t incarnation)
      : world(world),
        controller(o, {kLeaseS, Incarnation{incarnation}}),
        desk(controller, Incarnation{incarnation}, "",
             [](GroupId group) { return data::Prompt{.text = "prompt " + std::to_string(value(group)), .ids = {1}}; },
             kWelcome) {
    desk.serve_workers(false, {});
  }

  /// Trains a step if its batch is ready, with its bodies. Returns whether it did.
  bool train() {
    const std::optional<queue::answer::Taken> taken = desk.take(StepId{step + 1}, "run");
    if (!taken) return false;
    for (size_t i = 0; i < taken->heads.size(); ++i) {
      const std::vector<data::SampleId> samples = data::ids_of({&taken->heads[i], 1});
      queue::TensorCache body(queue::body_fields());
      if (!world.read(taken->stores[i], samples, body)) {
        desk.lose({&taken->heads[i].id, 1}, taken->stores[i]);
        return false;
      }
      for (const data::SampleId id : samples) check(body, id, taken->heads[i]);
      stores.insert(taken->stores[i]);
    }
    for (const data::Group& head : taken->heads) EXPECT_TRUE(trained.insert(head.id).second) << "group " << value(head.id) << " twice";
    ++step;
    for (const GroupId group : desk.commit(StepId{step}, PolicyVersion{step}).all()) dropped.insert(group);
    return true;
  }
  void check(const queue::TensorCache& body, data::SampleId id, const data::Group& head) const {
    std::vector<int32_t> ids(kTokens);
    std::iota(ids.begin(), ids.end(), 0);
    EXPECT_TRUE(std::ranges::equal(body.read<int32_t>(id, queue::kResponse), ids)) << "of sample " << value(id);
    const auto versions = body.read<int64_t>(id, queue::kVersions);
    EXPECT_GE(*std::ranges::min_element(versions), value(controller.queue().start_of(head.id))) << "older than the staleness rule was told";
  }

  World& world;
  queue::Controller controller;
  Desk desk;
  int64_t step = 0;
  std::set<GroupId> trained, dropped;
  std::set<std::string> stores;  // that had the bodies
};

/// A relay with what it stands on.
struct Node : End {
  Node(World& world, DeskOf above, const queue::Options& o)
      : End(world, std::move(above)),
        relay(client, {.terms_of = [o](const std::string& welcome) {
                         EXPECT_EQ(welcome, kWelcome);
                         return RelayTerms{o, kLeaseS};
                       },
                       .next_incarnation = [&world] { return Incarnation{100 + world.num_incarnations++}; },
                       .read = [&world](const std::string& store, std::span<const data::SampleId> samples,
                                        queue::TensorCache& into) { return world.read(store, samples, into); }}) {
    relay.join();
  }
  Relay relay;
};

}  // namespace tandem::worker
