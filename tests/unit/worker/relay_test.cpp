// SPDX-License-Identifier: Apache-2.0
// A relay between a run and its workers, without threads, under a clock of the test's own: what is said above and below, who dies when, and
// that what comes out was generated once. Calls go through bytes.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <random>

#include <nlohmann/json.hpp>

#include "../../error_text.h"
#include "../../temporary_folder.h"
#include "relay_world.h"
#include "tandem/base/json_file.h"
#include "tandem/worker/door.h"

namespace tandem::worker {
namespace {

class RelayTest : public testing::Test {
 protected:
  void start(int64_t groups, int64_t staleness) {
    options_ = options(groups, staleness);
    run_.emplace(world_, options_, 1);
    node_.emplace(world_, [this]() -> Desk& { return run_->desk; }, options_);
  }
  std::unique_ptr<TestWorker> below() {
    auto worker = std::make_unique<TestWorker>(world_, [this]() -> Desk& { return node_->relay.desk(); });
    worker->join();
    EXPECT_TRUE(worker->client.has_joined());
    return worker;
  }
  std::unique_ptr<TestWorker> beside() {
    auto worker = std::make_unique<TestWorker>(world_, [this]() -> Desk& { return run_->desk; });
    worker->join();
    return worker;
  }
  /// Time passes, and the relay does all that is due.
  void turn() {
    world_.now_s += kTickS;
    for (int i = 0; i < 100 && !node_->relay.has_ended() && node_->relay.turn(world_.now_s); ++i) continue;
  }
  /// Asks until it has so many groups, or there are none.
  void lease(TestWorker& worker, int64_t count) {
    for (int i = 0; i < 4 && std::ssize(worker.work) < count; ++i) {
      worker.ask(count - std::ssize(worker.work));
      turn();
    }
  }
  static int64_t finish(TestWorker& worker) {
    for (int64_t i = 0; i < kTokens; ++i) worker.draw();
    return worker.put();
  }
  /// Time in which these give signs of life, and the relay, too.
  void wait(double seconds, std::initializer_list<TestWorker*> alive) {
    for (const double end = world_.now_s + seconds; world_.now_s < end;) {
      world_.now_s += 1;
      for (TestWorker* worker : alive) (void)worker->beat();
      turn();
      node_->relay.desk().expire(world_.now_s);
      run_->desk.expire(world_.now_s);
    }
  }

  World world_;
  queue::Options options_;
  std::optional<Trainer> run_;
  std::optional<Node> node_;
};

TEST_F(RelayTest, TheRunHearsOneVoiceAndReadsOneStore) {
  start(6, 0);
  const auto a = below(), b = below(), c = below();
  for (int64_t step = 1; step <= 3; ++step) {
    for (TestWorker* each : {a.get(), b.get(), c.get()}) each->version = node_->client.newest(), each->ask(4);
    turn();
    for (TestWorker* each : {a.get(), b.get(), c.get()}) each->ask(4);
    for (TestWorker* each : {a.get(), b.get(), c.get()}) {
      EXPECT_EQ(each->work.size(), 2u) << "each has its share";
      EXPECT_EQ(finish(*each), 2);
    }
    EXPECT_EQ(run_->desk.num_clients(), 1);
    turn();
    ASSERT_TRUE(run_->train());
    turn();
    EXPECT_EQ(a->beat().size(), 2u) << "what the relay has, its worker need not keep";
    (void)b->beat(), (void)c->beat();
  }
  EXPECT_EQ(run_->stores, std::set{node_->line.own_store()});
  EXPECT_EQ(node_->relay.summary().groups, 18);
  wait(kLeaseS, {a.get(), b.get(), c.get()});
  EXPECT_EQ(node_->store.num_held(), 0) << "what is trained is dropped";
  EXPECT_EQ(a->store.num_held(), 0);
}

TEST_F(RelayTest, HasTheSharesOfAllItsWorkers) {
  start(8, 0);
  const auto a = below(), b = below(), c = below(), d = beside();
  d->ask(1);
  for (TestWorker* each : {a.get(), b.get(), c.get()}) each->ask(8);
  turn();
  EXPECT_EQ(node_->relay.desk().report_clients().size(), 3u);
  for (TestWorker* each : {a.get(), b.get(), c.get()}) {
    lease(*each, 8);
    EXPECT_EQ(each->work.size(), 2u) << "a quarter of eight";
  }
  d->ask(8);
  EXPECT_EQ(d->work.size(), 2u);
}

TEST_F(RelayTest, AsksForWhatItsWorkersWantAndNoMore) {
  start(8, 0);
  turn();
  EXPECT_EQ(run_->controller.queue().num_outstanding(), 0) << "nobody wants any";
  const auto a = below();
  a->ask(3);
  turn();
  EXPECT_EQ(run_->controller.queue().num_outstanding(), 3);
  turn();
  EXPECT_EQ(run_->controller.queue().num_outstanding(), 3) << "it asked once";
  a->ask(3);
  turn();
  EXPECT_EQ(a->work.size(), 3u);
  EXPECT_EQ(run_->controller.queue().num_outstanding(), 3);
}

TEST_F(RelayTest, WhatAWorkerLeavesGoesOnBehindTheRelay) {
  start(2, 0);
  const auto a = below(), b = below();
  lease(*a, 2);
  const std::vector<GroupId> groups = a->groups();
  ASSERT_EQ(groups.size(), 2u);
  a->draw(), a->draw();
  (void)a->beat();
  wait(kLeaseS + 2, {b.get()});
  EXPECT_EQ(node_->relay.desk().num_clients(), 1);
  lease(*b, 2);
  ASSERT_EQ(b->groups(), groups);
  EXPECT_EQ(b->work.at(groups[0]).group.samples[1].ids.size(), 2u) << "from the tokens that were reported";
  EXPECT_EQ(run_->controller.lease_counters().ended, 0) << "the run hears nothing of it";
  b->draw(), b->draw();
  EXPECT_EQ(b->put(), 2);
  a->draw(), a->draw();
  EXPECT_EQ(a->put(), 0) << "it was given up";
  turn();
  EXPECT_TRUE(run_->train());
}

TEST_F(RelayTest, ABodyThatWentWithItsWorkerIsGeneratedAnewBehindTheRelay) {
  start(2, 0);
  auto a = below();
  const auto b = below();
  lease(*a, 2);
  EXPECT_EQ(finish(*a), 2);
  a.reset();
  turn();
  EXPECT_EQ(node_->relay.summary().lost, 2);
  wait(kLeaseS + 2, {b.get()});
  lease(*b, 2);
  EXPECT_EQ(finish(*b), 2);
  turn();
  EXPECT_TRUE(run_->train());
  EXPECT_EQ(run_->controller.lease_counters().lost, 0);
}

// What one of its workers says is not said by the relay: the run would refuse it.
TEST_F(RelayTest, AWorkerThatSaysWhatCannotBeIsBarredBehindTheRelay) {
  start(2, 0);
  const auto a = below(), b = below();
  lease(*a, 1);
  for (int64_t i = 0; i < kTokens; ++i) a->draw();
  for (auto& [id, one] : a->work) one.group.samples.front().logprobs.back() = std::nanf("");
  EXPECT_EQ(a->put(), 1);
  turn();
  EXPECT_EQ(node_->relay.desk().num_clients(), 1);
  EXPECT_THROW(a->ask(1), PeerError);
  lease(*b, 2);
  EXPECT_EQ(finish(*b), 2);
  turn();
  EXPECT_TRUE(run_->train());
  EXPECT_TRUE(run_->desk.take_barred().empty());
}

TEST_F(RelayTest, AWorkerThatDiesAfterItFinishedLosesNothing) {
  start(2, 0);
  auto a = below();
  lease(*a, 2);
  EXPECT_EQ(finish(*a), 2);
  turn();
  a.reset();
  EXPECT_TRUE(run_->train());
}

TEST_F(RelayTest, WhatADeadRelayHadOthersGoOnWith) {
  start(3, 0);
  const auto a = below();
  lease(*a, 3);
  ASSERT_EQ(a->work.size(), 3u);
  a->draw(), a->draw(), a->draw();
  (void)a->beat();
  wait(kLeaseS / 3 + 1, {});  // the relay beats
  const auto c = beside();
  for (const double end = world_.now_s + kLeaseS + 2; world_.now_s < end; world_.now_s += 1) {
    (void)c->beat();
    run_->desk.expire(world_.now_s);
  }
  EXPECT_EQ(run_->desk.num_clients(), 1);
  c->ask(3);
  ASSERT_EQ(c->groups(), a->groups());
  EXPECT_EQ(c->work.begin()->second.group.samples[0].ids.size(), 3u);
  c->draw();
  EXPECT_EQ(c->put(), 3);
  EXPECT_EQ(finish(*a), 3) << "its relay does not know yet";
  turn();
  EXPECT_TRUE(run_->train());
  EXPECT_EQ(run_->stores, std::set{c->line.own_store()});
  EXPECT_EQ(node_->relay.summary().groups, 0);
}

TEST_F(RelayTest, WhatWaitsForAWorkerIsHeld) {
  start(2, 0);
  const auto a = below();
  a->ask(2);
  turn();  // two came, and nobody fetches them
  wait(3 * kLeaseS, {});
  EXPECT_EQ(node_->relay.desk().num_clients(), 0);
  EXPECT_EQ(run_->controller.lease_counters().ended, 0);
  const auto b = below();
  lease(*b, 2);
  EXPECT_EQ(b->work.size(), 2u);
}

TEST_F(RelayTest, WhatTheRunDropsItsWorkerHears) {
  start(2, 1);
  const auto a = below(), c = beside();
  lease(*a, 2);
  a->draw();
  (void)a->beat();
  wait(kLeaseS / 3 + 1, {a.get(), c.get()});
  for (int64_t step = 1; step <= 2; ++step) {
    c->version = PolicyVersion{step - 1};
    c->ask(2);
    ASSERT_EQ(finish(*c), 2);
    ASSERT_TRUE(run_->train());
  }
  EXPECT_EQ(run_->dropped.size(), 2u);
  wait(kLeaseS / 3 + 1, {c.get()});
  const std::vector<GroupId> groups = a->groups();
  EXPECT_EQ(a->beat(), groups);
  EXPECT_EQ(a->client.newest(), PolicyVersion{2});
}

TEST_F(RelayTest, AWorkerBehindGetsNothingThatBeginsLater) {
  start(2, 1);
  const auto a = below(), old = below();
  lease(*a, 2);
  ASSERT_EQ(finish(*a), 2);
  turn();
  ASSERT_TRUE(run_->train());
  turn();
  EXPECT_EQ(a->beat().size(), 2u);
  a->version = a->client.newest();
  ASSERT_EQ(a->version, PolicyVersion{1});
  a->ask(2);
  turn();
  old->ask(2);
  EXPECT_TRUE(old->work.empty()) << "they begin at version 1";
  a->ask(2);
  EXPECT_EQ(a->work.size(), 1u) << "of two for two";
}

TEST_F(RelayTest, ARunThatIsStartedAgainMakesEveryoneAnew) {
  start(2, 0);
  const auto a = below();
  lease(*a, 2);
  const Incarnation before = a->client.incarnation();
  run_.emplace(world_, options_, 2);
  world_.now_s += 1;
  turn();
  EXPECT_EQ(finish(*a), 0) << "of a history that is gone";
  EXPECT_FALSE(a->client.has_joined());
  a->join();
  EXPECT_GT(a->client.incarnation(), before);
  lease(*a, 2);
  EXPECT_EQ(finish(*a), 2);
  turn();
  EXPECT_TRUE(run_->train());
  EXPECT_EQ(run_->controller.lease_counters().late, 0);
}

TEST_F(RelayTest, ARelayThatWasGivenUpJoinsAnewWithItsWorkers) {
  start(2, 0);
  const auto a = below();
  lease(*a, 2);
  a->draw();
  const Incarnation before = a->client.incarnation();
  world_.now_s += kLeaseS + 1;
  run_->desk.expire(world_.now_s);
  EXPECT_EQ(run_->desk.num_clients(), 0);
  turn();
  turn();
  EXPECT_EQ(run_->desk.num_clients(), 1);
  EXPECT_EQ(finish(*a), 0) << "its leases ended with the relay's";
  EXPECT_FALSE(a->client.has_joined());
  a->join();
  EXPECT_EQ(a->client.incarnation(), before) << "its weights are still of use";
  lease(*a, 2);
  EXPECT_EQ(finish(*a), 2);
  turn();
  EXPECT_TRUE(run_->train());
}

TEST_F(RelayTest, TellsTheRunWhatFailed) {
  start(2, 0);
  const auto a = below(), b = below();
  a->client.close("not today");
  turn();
  const std::vector<std::string> failures = run_->desk.take_failures();
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_TRUE(failures[0].ends_with(": not today")) << failures[0];
  EXPECT_EQ(run_->desk.num_clients(), 1) << "the relay itself goes on";
  lease(*b, 2);
  EXPECT_EQ(b->work.size(), 2u);
}

TEST_F(RelayTest, WhoLeavesSaysWhatItsWorkersHad) {
  start(2, 0);
  const auto a = below();
  lease(*a, 2);
  a->draw();
  (void)a->beat();
  node_->relay.leave();
  EXPECT_EQ(run_->desk.num_clients(), 0);
  const auto c = beside();
  c->ask(2);
  ASSERT_EQ(c->work.size(), 2u);
  EXPECT_EQ(c->work.begin()->second.group.samples[0].ids.size(), 1u);
}

TEST_F(RelayTest, HearsThatTheRunIsOver) {
  start(2, 0);
  const auto a = below();
  run_->desk.end();
  turn();
  EXPECT_TRUE(node_->relay.has_ended());
  EXPECT_EQ(run_->desk.num_clients(), 0);
}

TEST_F(RelayTest, ManyTokensTakeSeveralBeats) {
  start(3, 0);
  const auto a = below();
  lease(*a, 3);
  for (auto& [id, one] : a->work)
    for (data::Sample& sample : one.group.samples) {
      sample.ids.assign(400'000, 7);
      sample.logprobs.assign(400'000, -1);
      sample.versions.assign(400'000, 0);
    }
  (void)a->beat();
  node_->relay.leave();
  const auto c = beside();
  c->ask(3);
  ASSERT_EQ(c->work.size(), 3u);
  for (const auto& [id, one] : c->work) EXPECT_EQ(one.group.samples[1].ids.size(), 400'000u);
}

TEST_F(RelayTest, ARelayMayJoinARelay) {
  start(4, 0);
  Node second(world_, [this]() -> Desk& { return node_->relay.desk(); }, options_);
  TestWorker a(world_, [&second]() -> Desk& { return second.relay.desk(); });
  a.join();
  for (int i = 0; i < 8 && a.work.size() < 4; ++i) {
    a.ask(4 - std::ssize(a.work));
    (void)second.relay.turn(world_.now_s += kTickS);
    turn();
  }
  ASSERT_EQ(a.work.size(), 4u);
  EXPECT_EQ(finish(a), 4);
  for (int i = 0; i < 4; ++i) {
    (void)second.relay.turn(world_.now_s += kTickS);
    turn();
  }
  EXPECT_EQ(run_->desk.num_clients(), 1);
  EXPECT_TRUE(run_->train());
  EXPECT_EQ(run_->stores, std::set{node_->line.own_store()});
}

// Workers behind two relays and beside them come, hang, die and take weights when they like; relays die, too. Each group is trained once or
// dropped, none is missing, and the staleness rule was told the truth.
TEST_F(RelayTest, NothingIsTrainedTwiceWhoeverDies) {
  constexpr int64_t kSteps = 60, kWorkers = 7;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    std::mt19937_64 rng(seed);
    const auto below_n = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
    world_ = {};
    node_.reset();
    options_ = options(4, static_cast<int64_t>(seed % 3));
    options_.lag_policy = seed < 3 ? "drop" : "wait";
    run_.emplace(world_, options_, 1);
    const DeskOf above = [this]() -> Desk& { return run_->desk; };
    std::vector<std::unique_ptr<Node>> nodes(2);
    for (auto& node : nodes) node = std::make_unique<Node>(world_, above, options_);
    std::vector<std::unique_ptr<TestWorker>> workers(kWorkers);
    const auto hire = [&](size_t i) {
      workers[i] = std::make_unique<TestWorker>(world_, i == 0 ? above : [&nodes, i]() -> Desk& { return nodes[i % 2]->relay.desk(); });
    };
    for (size_t i = 0; i < workers.size(); ++i) hire(i);
    std::vector<double> silent_until(kWorkers, 0), beat_s(kWorkers, 0);
    int64_t round = 0;
    for (; run_->step < kSteps && round < 60'000; ++round) {
      world_.now_s += 0.1;
      const auto at = static_cast<size_t>(below_n(kWorkers));
      TestWorker& one = *workers[at];
      if (world_.now_s >= silent_until[at]) {
        if (below_n(3) == 0 && one.client.has_joined()) one.version = std::max(one.version, one.client.newest());
        one.ask(below_n(3));
        one.draw();
        if (world_.now_s - beat_s[at] > kLeaseS / 4) beat_s[at] = world_.now_s, (void)one.beat();
        (void)one.put();
      }
      if (below_n(400) == 0) silent_until[at] = world_.now_s + kLeaseS * 2;
      if (below_n(400) == 0) hire(at);
      for (auto& node : nodes) {
        if (below_n(2) == 0) (void)node->relay.turn(world_.now_s);
        if (below_n(3000) == 0) {
          node.reset();  // it dies, and another stands at its place
          node = std::make_unique<Node>(world_, above, options_);
        }
        node->relay.desk().expire(world_.now_s);
      }
      run_->desk.expire(world_.now_s);
      (void)run_->train();
    }
    EXPECT_EQ(run_->step, kSteps) << "seed " << seed;
    for (const GroupId group : run_->dropped) EXPECT_FALSE(run_->trained.contains(group));
    std::set<GroupId> all = run_->trained;
    all.insert(run_->dropped.begin(), run_->dropped.end());
    for (int64_t id = 0; id < value(run_->controller.next_group()); ++id)
      EXPECT_TRUE(all.contains(GroupId{id}) != run_->controller.queue().is_outstanding(GroupId{id})) << "group " << id;
    workers.clear();
    nodes.clear();
  }
}

// Workers take a relay at an address for the one before, come back late, if its number is below.
TEST(NextStart, EachStartHasANumberAboveThoseOfAllBeforeItWithItsKeys) {
  namespace fs = std::filesystem;
  const test::TemporaryFolder folder("starts");
  const std::string path = folder / "below.secret", token = folder / "below";
  const auto start = [&](const std::string& keys) {
    (void)kept_keys(keys, token);
    return value(next_start(keys));
  };
  EXPECT_EQ(start(path), 1);
  EXPECT_EQ(start(path), 2);
  EXPECT_EQ(value(next_start(path)), 3) << "one process, for another run";
  fs::last_write_time(path, fs::last_write_time(path) - std::chrono::hours(24 * 365));
  EXPECT_EQ(start(path), 4) << "a clock was set back";
  fs::remove(token);
  EXPECT_EQ(start(path), 5) << "the token is written anew";
  fs::copy(path, folder / "elsewhere.secret");
  EXPECT_EQ(start(folder / "elsewhere.secret"), 6) << "on another machine";
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write) << "a secret";
  nlohmann::json keys = read_json_object(path);
  const std::string secret = keys["secret"];
  keys.erase("starts");
  write_file(path, keys.dump());
  EXPECT_EQ(start(path), (1 << 29) + 1) << "keys of before there was a count: above all seconds that stood for it";
  EXPECT_EQ(read_json_object(path)["secret"], secret);
  for (const char* text : {"-1", "\"x\"", "1.5", "null", "1073741824"}) {
    const nlohmann::json wrong = nlohmann::json::parse(text);
    keys["starts"] = wrong;
    write_file(path, keys.dump());
    const std::string error = test::error_of([&] { next_start(path); });
    EXPECT_NE(error.find("below.secret: says that " + wrong.dump()), std::string::npos) << error;
  }
  keys["starts"] = 8;
  write_file(path, keys.dump());
  fs::create_directory(path + ".partial");
  EXPECT_NE(test::error_of([&] { next_start(path); }).find("cannot be written"), std::string::npos) << "a number that could come twice";
  fs::remove(path + ".partial");
  EXPECT_EQ(value(next_start(path)), 9);
}

}  // namespace
}  // namespace tandem::worker
