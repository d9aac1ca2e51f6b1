// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/admission.h"

#include <gtest/gtest.h>

namespace tandem::queue {
namespace {

Outstanding held(int64_t id, int64_t start, bool finished) { return {GroupId{id}, start, finished}; }
std::vector<GroupId> ids(std::initializer_list<int64_t> values) {
  std::vector<GroupId> all;
  for (int64_t v : values) all.push_back(GroupId{v});
  return all;
}

TEST(Admission, SynchronousStartsExactlyOneBatch) {
  const StalenessRule rule = {.groups_per_step = 2, .staleness = 0};
  EXPECT_EQ(num_may_start(rule, 5, 5, {}), 2);
  const std::vector<Outstanding> two = {held(1, 5, false), held(2, 5, true)};
  EXPECT_EQ(num_may_start(rule, 5, 5, two), 0);
  EXPECT_TRUE(choose_batch(rule, 5, two).batch.empty());
}

TEST(Admission, TheOldestFinishedGroupsAreTrainedFirst) {
  const StalenessRule rule = {.groups_per_step = 2, .staleness = 2};
  const std::vector<Outstanding> groups = {held(9, 4, true), held(3, 5, true), held(7, 3, true), held(1, 5, true)};
  EXPECT_EQ(choose_batch(rule, 5, groups).batch, ids({7, 9}));
}

TEST(Admission, DropEvictsWhatTheNextUpdateWouldTrainTooLate) {
  const StalenessRule rule = {.groups_per_step = 2, .staleness = 1, .policy = LagPolicy::kDrop};
  const std::vector<Outstanding> groups = {held(4, 3, true), held(2, 3, false), held(5, 4, false)};
  EXPECT_TRUE(too_stale(rule, 4, groups).empty());
  EXPECT_EQ(too_stale(rule, 5, groups), ids({2, 4}));
  EXPECT_TRUE(too_stale({.groups_per_step = 2, .staleness = 1, .policy = LagPolicy::kWait}, 5, groups).empty());
}

TEST(Admission, WaitHoldsTheUpdateBackForAGroupThatWouldMissIt) {
  const StalenessRule rule = {.groups_per_step = 1, .staleness = 1, .policy = LagPolicy::kWait};
  // Started at 3 and 4; now at 4. If the second were trained now, the first would be due at once: it can still be.
  EXPECT_EQ(choose_batch(rule, 4, std::vector<Outstanding>{held(1, 4, false), held(2, 4, true)}).batch, ids({2}));
  // Started at 3: after an update to 5 its lag would be 2.
  const Choice choice = choose_batch(rule, 4, std::vector<Outstanding>{held(1, 3, false), held(2, 4, true)});
  EXPECT_TRUE(choice.batch.empty());
  EXPECT_EQ(choice.wait_for, ids({1}));
}

TEST(Admission, AGeneratorBehindTheTrainerMayStartFewer) {
  const StalenessRule rule = {.groups_per_step = 2, .staleness = 2, .policy = LagPolicy::kWait};
  EXPECT_EQ(num_may_start(rule, 5, 5, {}), 6);
  EXPECT_EQ(num_may_start(rule, 5, 4, {}), 4);
  EXPECT_EQ(num_may_start(rule, 5, 3, {}), 2);
  EXPECT_EQ(num_may_start(rule, 5, 2, {}), 0);
}

}  // namespace
}  // namespace tandem::queue
