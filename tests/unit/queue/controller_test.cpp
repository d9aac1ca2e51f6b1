// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/controller.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tandem/base/error.h"

namespace tandem::queue {
namespace {

constexpr double kLeaseS = 10;
constexpr LeaseTerms kTerms{kLeaseS, Incarnation{0}};

Options options(int64_t staleness, int64_t groups = 2) {
  return {.groups_per_step = groups, .group_size = 1, .staleness = staleness};
}

data::Group head_of(GroupId id) {
  data::Group head{id, {}, {}, std::vector<data::Sample>(1)};
  head.samples[0].id = data::sample_id(id, 1, 0);
  head.samples[0].scored = true;
  return head;
}

std::vector<GroupId> groups_of(const std::vector<Lease>& leases) {
  std::vector<GroupId> ids;
  for (const Lease& lease : leases) ids.push_back(lease.group);
  return ids;
}

std::vector<GroupId> ids(std::initializer_list<int64_t> numbers) {
  std::vector<GroupId> ids;
  for (const int64_t n : numbers) ids.push_back(GroupId{n});
  return ids;
}

constexpr PolicyVersion kFirst{0};

void train(Controller& c, int64_t step) {
  ASSERT_TRUE(c.batch_ready());
  (void)c.take(StepId{step});
  (void)c.commit(StepId{step}, PolicyVersion{step});
}

TEST(Controller, LeasesWhatTheRuleLetsStart) {
  Controller c(options(1), kTerms);
  const WorkerId a = c.join(0), b = c.join(0);
  EXPECT_EQ(groups_of(c.lease(a, 3, kFirst, 0)), ids({0, 1, 2}));
  EXPECT_EQ(groups_of(c.lease(b, 3, kFirst, 0)), ids({3})) << "four may be outstanding";
  EXPECT_TRUE(c.lease(b, 3, kFirst, 0).empty());
  EXPECT_TRUE(c.lease(WorkerId{77}, 3, kFirst, 0).empty());
  EXPECT_EQ(c.next_group(), GroupId{4});
}

TEST(Controller, NobodyGetsMoreThanItsShareOfWhatThereIs) {
  Controller c(options(1, 4), kTerms);
  const WorkerId a = c.join(0), b = c.join(0), trainer = c.join(0);
  (void)c.hear_of(trainer, 0);
  EXPECT_EQ(groups_of(c.lease(b, 1, kFirst, 0)), ids({0}));
  EXPECT_EQ(groups_of(c.lease(a, 9, kFirst, 0)), ids({1, 2, 3, 4})) << "half of eight; who never asks has no share";
  EXPECT_EQ(groups_of(c.lease(b, 9, kFirst, 0)), ids({5, 6, 7}));
  c.leave(b);
  EXPECT_EQ(groups_of(c.lease(a, 9, kFirst, 0)), ids({0, 5, 6, 7})) << "alone it may have all";
}

TEST(Controller, WhoSpeaksForSeveralHasTheSharesOfAll) {
  Controller c(options(1, 4), kTerms);
  const WorkerId a = c.join(0), relay = c.join(0);
  EXPECT_EQ(groups_of(c.lease(a, 1, kFirst, 0)), ids({0}));
  EXPECT_EQ(c.lease(relay, 9, kFirst, 0, 3).size(), 6u) << "three quarters of eight";
  EXPECT_EQ(c.lease(a, 9, kFirst, 0).size(), 1u);
  EXPECT_EQ(c.workers().back().speaks_for, 3);
  (void)c.lease(relay, 0, kFirst, 0, 1);
  c.leave(a);
  EXPECT_EQ(c.lease(relay, 9, kFirst, 0, int64_t{1} << 40).size(), 2u) << "alone it may have all, whatever it says";
}

TEST(Controller, AGroupOfAWorkerThatIsSilentGoesToAnotherAndIsTrainedOnce) {
  Controller c(options(0), kTerms);
  const WorkerId a = c.join(0);
  const std::vector<Lease> first = c.lease(a, 2, kFirst, 0);
  const WorkerId b = c.join(5);
  EXPECT_TRUE(c.lease(b, 2, kFirst, 5).empty());
  EXPECT_TRUE(c.expire(kLeaseS).empty()) << "to the end of the term";
  EXPECT_EQ(c.expire(kLeaseS + 1), std::vector{a});
  const std::vector<Lease> second = c.lease(b, 2, kFirst, kLeaseS + 1);
  ASSERT_EQ(groups_of(second), groups_of(first));
  EXPECT_NE(second[0].number, first[0].number);
  EXPECT_EQ(second[0].begun, kNoLease) << "nobody reported tokens";
  EXPECT_FALSE(c.put(a, first[0].number, head_of(GroupId{0}))) << "it was given up";
  EXPECT_FALSE(c.put(b, first[0].number, head_of(GroupId{0}))) << "another's lease";
  EXPECT_TRUE(c.put(b, second[0].number, head_of(GroupId{0})));
  EXPECT_FALSE(c.put(b, second[0].number, head_of(GroupId{0}))) << "twice";
  EXPECT_TRUE(c.put(b, second[1].number, head_of(GroupId{1})));
  train(c, 1);
  EXPECT_EQ(c.lease_counters().late, 3);
  EXPECT_EQ(c.lease_counters().ended, 2);
  EXPECT_EQ(c.queue().counters().trained, 2);
}

TEST(Controller, ASignOfLifeRenewsAndTellsWhatIsOver) {
  Controller c(options(0), kTerms);
  const WorkerId a = c.join(0);
  const std::vector<Lease> mine = c.lease(a, 2, kFirst, 0);
  EXPECT_TRUE(c.beat(a, kFirst, std::vector<Standing>{{GroupId{0}, mine[0].number}, {GroupId{1}, mine[1].number}}, 9).empty());
  EXPECT_TRUE(c.expire(15).empty());
  const auto over = c.beat(a, kFirst, std::vector<Standing>{{GroupId{0}, mine[0].number}, {GroupId{5}, LeaseNumber{99}}}, 16);
  EXPECT_EQ(over, ids({5}));
  const WorkerId b = c.join(16);
  EXPECT_EQ(groups_of(c.lease(b, 2, kFirst, 16)), ids({1})) << "the first did not name it any more";
  EXPECT_EQ(c.beat(WorkerId{9}, kFirst, std::vector<Standing>{{GroupId{0}, mine[0].number}}, 16), ids({0})) << "nobody knows this one";
}

TEST(Controller, GoesOnFromTokensThatWereReported) {
  Controller c(options(3), kTerms);
  const WorkerId a = c.join(0);
  const std::vector<Lease> mine = c.lease(a, 2, kFirst, 0);
  (void)c.beat(a, kFirst, std::vector<Standing>{{GroupId{0}, mine[0].number, true, true}, {GroupId{1}, mine[1].number, true, false}}, 1);
  c.leave(a);
  const WorkerId b = c.join(2);
  const std::vector<Lease> again = c.lease(b, 2, kFirst, 2);
  ASSERT_EQ(groups_of(again), ids({0, 1}));
  EXPECT_EQ(again[0].begun, mine[0].number);
  EXPECT_EQ(again[1].begun, kNoLease);
}

// S = 1: what has no token when the version changes starts later; what has is too old two versions on.
TEST(Controller, WhatHasNoTokenStartsAtTheVersionOfItsFirst) {
  Controller c(options(1), kTerms);
  const WorkerId a = c.join(0);
  const std::vector<Lease> mine = c.lease(a, 4, kFirst, 0);
  EXPECT_TRUE(c.put(a, mine[0].number, head_of(GroupId{0})));
  EXPECT_TRUE(c.put(a, mine[1].number, head_of(GroupId{1})));
  (void)c.beat(a, kFirst, std::vector<Standing>{{GroupId{2}, mine[2].number, true}, {GroupId{3}, mine[3].number, false}}, 0);
  train(c, 1);
  EXPECT_EQ(c.queue().start_of(GroupId{3}), kFirst) << "a worker with the old weights may yet draw its first token";
  (void)c.beat(a, PolicyVersion{1}, std::vector<Standing>{{GroupId{2}, mine[2].number, true}, {GroupId{3}, mine[3].number, false}}, 0);
  const std::vector<Lease> more = c.lease(a, 2, PolicyVersion{1}, 0);
  for (const Lease& lease : more) EXPECT_TRUE(c.put(a, lease.number, head_of(lease.group)));
  ASSERT_TRUE(c.batch_ready());
  (void)c.take(StepId{2});
  EXPECT_EQ(c.commit(StepId{2}, PolicyVersion{2}).dropped, ids({2})) << "its first token is two versions old";
  EXPECT_EQ(c.queue().start_of(GroupId{3}), PolicyVersion{1});
  EXPECT_FALSE(c.put(a, mine[2].number, head_of(GroupId{2})));
  EXPECT_TRUE(c.put(a, mine[3].number, head_of(GroupId{3})));
}

TEST(Controller, GivesNoGroupToAWorkerBehindItsFirstToken) {
  Controller c(options(2, 1), kTerms);
  const WorkerId a = c.join(0), b = c.join(0);
  EXPECT_TRUE(c.lease(a, 1, PolicyVersion{1}, 0).empty()) << "there is no such version";
  const std::vector<Lease> first = c.lease(a, 1, kFirst, 0);
  EXPECT_TRUE(c.put(a, first[0].number, head_of(GroupId{0})));
  train(c, 1);
  const std::vector<Lease> second = c.lease(a, 1, PolicyVersion{1}, 0);
  c.leave(a);
  EXPECT_EQ(groups_of(c.lease(b, 1, kFirst, 0)), ids({2})) << "a new one, of the weights that it has";
  EXPECT_EQ(groups_of(c.lease(b, 1, PolicyVersion{1}, 0)), groups_of(second));
}

Options waits(int64_t staleness) {
  Options o = options(staleness, 1);
  o.lag_policy = "wait";
  return o;
}

// Under wait, while a batch is taken: what a worker behind may start must fit into the updates after it.
TEST(Controller, AWorkerBehindStartsNothingThatWouldLagTooFarBehindATakenBatch) {
  Controller c(waits(1), kTerms);
  const WorkerId a = c.join(0), b = c.join(0);
  EXPECT_TRUE(c.put(a, c.lease(a, 1, kFirst, 0).at(0).number, head_of(GroupId{0})));
  train(c, 1);
  EXPECT_TRUE(c.put(a, c.lease(a, 1, PolicyVersion{1}, 0).at(0).number, head_of(GroupId{1})));
  ASSERT_TRUE(c.batch_ready());
  (void)c.take(StepId{2});
  EXPECT_TRUE(c.lease(b, 1, kFirst, 0).empty()) << "after the update it would be two versions old";
  EXPECT_EQ(c.lease(b, 1, PolicyVersion{1}, 0).size(), 1u);
  (void)c.commit(StepId{2}, PolicyVersion{2});
}

TEST(Controller, AWorkerBehindHoldsUpNoBatchForEver) {
  Controller c(waits(2), kTerms);
  const WorkerId a = c.join(0), b = c.join(0);
  for (int64_t v = 0; v < 4; ++v) {
    EXPECT_TRUE(c.put(a, c.lease(a, 1, PolicyVersion{v}, 0).at(0).number, head_of(GroupId{v})));
    train(c, v + 1);
  }
  const std::vector<Lease> first = c.lease(a, 1, PolicyVersion{4}, 0);
  EXPECT_TRUE(c.put(a, first.at(0).number, head_of(first.at(0).group)));
  const std::vector<Lease> old = c.lease(a, 1, PolicyVersion{4}, 0);  // begins at 4, and runs
  train(c, 5);
  const std::vector<Lease> second = c.lease(a, 1, PolicyVersion{5}, 0);
  EXPECT_TRUE(c.put(a, second.at(0).number, head_of(second.at(0).group)));
  if (c.batch_ready()) {
    (void)c.take(StepId{6});
    const std::vector<Lease> behind = c.lease(b, 1, PolicyVersion{4}, 0);
    (void)c.commit(StepId{6}, PolicyVersion{6});
    for (const Lease& lease : behind) EXPECT_TRUE(c.put(b, lease.number, head_of(lease.group)));
  }
  EXPECT_TRUE(c.put(a, old.at(0).number, head_of(old.at(0).group)));
  EXPECT_TRUE(c.batch_ready()) << "all that ran has ended";
}

TEST(Controller, NumbersAreNeverThoseOfAControllerBefore) {
  Controller first(options(0), kTerms), second(options(0), {kLeaseS, Incarnation{1}});
  const WorkerId a = first.join(0), b = second.join(0);
  EXPECT_NE(a, b);
  EXPECT_NE(first.lease(a, 1, kFirst, 0).at(0).number, second.lease(b, 1, kFirst, 0).at(0).number);
}

TEST(Controller, WhatIsLostIsGeneratedAnewAlsoOutOfATakenBatch) {
  Controller c(options(0), kTerms);
  const WorkerId a = c.join(0), b = c.join(0);
  for (const Lease& lease : c.lease(a, 2, kFirst, 0)) EXPECT_TRUE(c.put(a, lease.number, head_of(lease.group)));
  ASSERT_TRUE(c.batch_ready());
  (void)c.take(StepId{1});
  c.lose(ids({1, 44}));
  EXPECT_FALSE(c.batch_ready());
  const std::vector<Lease> again = c.lease(b, 5, kFirst, 0);
  EXPECT_EQ(groups_of(again), ids({1}));
  EXPECT_TRUE(c.put(b, again[0].number, head_of(GroupId{1})));
  train(c, 1);
  EXPECT_EQ(c.lease_counters().lost, 1);
}

TEST(Controller, AfterARestoreGroupsThatRanComeFirst) {
  Controller before(options(1), kTerms);
  const WorkerId a = before.join(0);
  const std::vector<Lease> leases = before.lease(a, 4, kFirst, 0);
  EXPECT_TRUE(before.put(a, leases[2].number, head_of(GroupId{2})));
  Controller after(options(1), kTerms);
  after.restore(before.state(), before.next_group());
  const WorkerId b = after.join(0);
  EXPECT_EQ(groups_of(after.lease(b, 9, kFirst, 0)), ids({0, 1, 3}));
  EXPECT_EQ(after.queue().finished(), ids({2}));
  EXPECT_EQ(after.queue().num_outstanding(), 4);
}

}  // namespace
}  // namespace tandem::queue
