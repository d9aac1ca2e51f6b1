// SPDX-License-Identifier: Apache-2.0
// Random interleavings of the rule and of the queue with long-tailed durations: the lag is bounded, there is always progress,
// every group is trained once or reported dropped. The same harness catches rules that were weakened on purpose.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "tandem/base/check.h"
#include "tandem/base/rng.h"
#include "tandem/queue/sample_queue.h"

namespace tandem::queue {
namespace {

constexpr int kNumInterleavings = 10000;
constexpr int64_t kNumUpdates = 10;

/// What the harness drives: the queue, or the bare rule.
struct Subject {
  std::function<int64_t()> num_may_start;
  std::function<void(GroupId, int64_t version)> start;
  std::function<void(GroupId)> finish;
  std::function<std::vector<GroupId>()> take;     // empty if no batch may be formed
  std::function<std::vector<GroupId>()> wait_for;
  std::function<std::vector<GroupId>(int64_t after)> commit;  // evicted groups
};

/// The rule's functions, replaceable one by one.
struct RuleFunctions {
  std::function<Choice(const StalenessRule&, int64_t, std::span<const Outstanding>)> choose = choose_batch;
  std::function<std::vector<GroupId>(const StalenessRule&, int64_t, std::span<const Outstanding>)> evict = too_stale;
  std::function<int64_t(const StalenessRule&, int64_t, std::span<const Outstanding>)> room =
      [](const StalenessRule& r, int64_t v, std::span<const Outstanding> g) { return num_may_start(r, v, v, g); };
};

class BareRule {
 public:
  BareRule(const StalenessRule& rule, const RuleFunctions& f) : rule_(rule), f_(f) {}
  Subject subject() {
    return {[this] { return f_.room(rule_, version_, groups_); },
            [this](GroupId id, int64_t version) { groups_.push_back({id, version, false}); },
            [this](GroupId id) {
              for (Outstanding& g : groups_)
                if (g.id == id) g.finished = true;
            },
            [this] { return taken_ = f_.choose(rule_, version_, groups_).batch; },
            [this] { return f_.choose(rule_, version_, groups_).wait_for; },
            [this](int64_t after) {
              erase(taken_);
              version_ = after;
              const auto evicted = f_.evict(rule_, version_, groups_);
              erase(evicted);
              return evicted;
            }};
  }

 private:
  void erase(const std::vector<GroupId>& ids) {
    std::erase_if(groups_, [&](const Outstanding& g) { return std::find(ids.begin(), ids.end(), g.id) != ids.end(); });
  }
  StalenessRule rule_;
  RuleFunctions f_;
  std::vector<Outstanding> groups_;
  std::vector<GroupId> taken_;
  int64_t version_ = 0;
};

/// Drives the subject through random events; "" or the first violation.
std::string violation_of(const StalenessRule& rule, Subject s, uint64_t seed, uint64_t stream) {
  RandomStream random(seed, stream);
  struct Life {
    int64_t start, left;
  };
  std::map<GroupId, Life> running;
  std::map<GroupId, int64_t> starts;
  std::set<GroupId> over;
  int64_t version = 0, next = 0, idle = 0;
  while (version < kNumUpdates) {
    // The generator may start fewer than allowed, now and then.
    for (int64_t n = s.num_may_start(); n > 0 && (idle > 0 || random.uniform() < 0.8); --n) {
      s.start(GroupId{next}, version);
      starts[GroupId{next}] = version;
      running[GroupId{next}] = {version, static_cast<int64_t>(std::min(400.0, std::pow(1 - random.uniform(), -1.2)))};  // Pareto
      ++next;
    }
    for (auto& [id, life] : running) --life.left;
    for (auto it = running.begin(); it != running.end();) {
      if (it->second.left > 0) {
        ++it;
        continue;
      }
      s.finish(it->first);
      it = running.erase(it);
    }
    ++idle;
    if (idle > 2000) return "no progress";
    if (idle < 1000 && random.uniform() < 0.2) continue;  // the trainer is busy
    for (GroupId id : s.wait_for())
      if (!running.contains(id)) return join_text("waits for group ", value(id), ", which is not running");
    const std::vector<GroupId> batch = s.take();
    if (batch.empty()) continue;
    idle = 0;
    if (std::ssize(batch) != rule.groups_per_step) return join_text("a batch of ", batch.size());
    for (GroupId id : batch) {
      if (running.contains(id)) return join_text("trained group ", value(id), " before its end");
      if (version - starts.at(id) > rule.staleness) return join_text("group ", value(id), " has lag ", version - starts.at(id));
      if (!over.insert(id).second) return join_text("group ", value(id), " is trained or dropped twice");
    }
    for (GroupId id : s.commit(++version)) {
      if (!over.insert(id).second) return join_text("group ", value(id), " is trained or dropped twice");
      running.erase(id);
    }
    // With nobody dropped, groups leave only by being trained; the rest must still be with the subject, within the gate.
    if (std::ssize(starts) - std::ssize(over) > rule.max_outstanding()) return "more groups outstanding than the gate allows";
  }
  return "";
}

StalenessRule random_rule(int64_t staleness, LagPolicy policy, uint64_t stream) {
  return {.groups_per_step = 1 + static_cast<int64_t>(stream % 4), .staleness = staleness, .policy = policy};
}

class Interleaving : public testing::TestWithParam<std::tuple<int64_t, LagPolicy>> {
 protected:
  const uint64_t seed_ = 20240607;
  const int64_t staleness_ = std::get<0>(GetParam());
  const LagPolicy policy_ = std::get<1>(GetParam());
};

TEST_P(Interleaving, OfTheBareRuleKeepsTheBound) {
  for (uint64_t i = 0; i < kNumInterleavings; ++i) {
    const StalenessRule rule = random_rule(staleness_, policy_, i);
    BareRule bare(rule, {});
    ASSERT_EQ(violation_of(rule, bare.subject(), seed_, i), "") << "seed " << seed_ << " stream " << i;
  }
}

TEST_P(Interleaving, OfTheQueueKeepsTheBound) {
  for (uint64_t i = 0; i < kNumInterleavings; ++i) {
    const StalenessRule rule = random_rule(staleness_, policy_, i);
    Options options{.groups_per_step = rule.groups_per_step, .group_size = 1, .staleness = staleness_};
    options.lag_policy = policy_ == LagPolicy::kWait ? "wait" : "drop";
    SampleQueue queue(options);
    int64_t step = 0, dropped = 0;
    std::map<GroupId, int64_t> starts;
    Subject subject = {
        [&] { return queue.num_may_start(); },
        [&](GroupId id, int64_t version) {
          queue.start(id, PolicyVersion{version});
          starts[id] = version;
        },
        [&](GroupId id) {
          data::Group group{id, {}, PolicyVersion{starts.at(id)}, std::vector<data::Sample>(1)};
          group.samples[0].id = data::sample_id(id, 1, 0);
          group.samples[0].scored = true;
          queue.put(std::move(group));
        },
        [&]() -> std::vector<GroupId> {
          if (!queue.batch_ready()) return {};
          std::vector<GroupId> ids;
          const data::Batch batch = queue.take(StepId{++step});
          for (const data::Group& g : batch.groups) ids.push_back(g.id);
          EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
          return ids;
        },
        [&] { return queue.must_wait_for(); },
        [&](int64_t after) {
          auto evicted = queue.commit(StepId{step}, PolicyVersion{after}).all();
          dropped += std::ssize(evicted);
          return evicted;
        }};
    ASSERT_EQ(violation_of(rule, subject, seed_, i), "") << "seed " << seed_ << " stream " << i;
    const Counters c = queue.counters();
    ASSERT_EQ(c.dropped, dropped);
    ASSERT_EQ(c.trained, kNumUpdates * rule.groups_per_step);
    ASSERT_EQ(c.started, c.trained + c.dropped + queue.num_outstanding()) << "a group got lost";
    if (policy_ == LagPolicy::kWait || staleness_ == 0) {
      ASSERT_EQ(c.dropped, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, Interleaving,
                         testing::Combine(testing::Values(0, 1, 2, 4), testing::Values(LagPolicy::kDrop, LagPolicy::kWait)),
                         [](const auto& info) {
                           return "S" + std::to_string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) == LagPolicy::kDrop ? "Drop" : "Wait");
                         });

/// How many of the interleavings a weakened rule gets through with a violation.
int num_caught(int64_t staleness, LagPolicy policy, const RuleFunctions& weakened) {
  int caught = 0;
  for (uint64_t i = 0; i < 500; ++i) {
    const StalenessRule rule = random_rule(staleness, policy, i);
    BareRule bare(rule, weakened);
    caught += !violation_of(rule, bare.subject(), 99, i).empty();
  }
  return caught;
}

TEST(WeakenedRules, AreCaughtByTheSameHarness) {
  for (int64_t staleness : {1, 2, 4}) {
    // The gate alone: nobody evicts.
    RuleFunctions no_eviction;
    no_eviction.evict = [](const StalenessRule&, int64_t, std::span<const Outstanding>) { return std::vector<GroupId>{}; };
    EXPECT_GT(num_caught(staleness, LagPolicy::kDrop, no_eviction), 0) << staleness;
    // The gate alone: nobody waits.
    RuleFunctions no_wait;
    no_wait.choose = [](StalenessRule rule, int64_t version, std::span<const Outstanding> groups) {
      rule.policy = LagPolicy::kDrop;
      return choose_batch(rule, version, groups);
    };
    EXPECT_GT(num_caught(staleness, LagPolicy::kWait, no_wait), 0) << staleness;
    // The condition of `wait` off by one update.
    RuleFunctions late;
    late.choose = [](StalenessRule rule, int64_t version, std::span<const Outstanding> groups) {
      ++rule.staleness;
      return choose_batch(rule, version, groups);
    };
    EXPECT_GT(num_caught(staleness, LagPolicy::kWait, late), 0) << staleness;
    // A gate one batch too wide. (It shows as too many groups outstanding, and under `wait` as a deadlock or a lag.)
    RuleFunctions wide;
    wide.room = [](StalenessRule rule, int64_t version, std::span<const Outstanding> groups) {
      ++rule.staleness;
      return num_may_start(rule, version, version, groups);
    };
    EXPECT_GT(num_caught(staleness, LagPolicy::kWait, wide), 0) << staleness;
  }
}

}  // namespace
}  // namespace tandem::queue
