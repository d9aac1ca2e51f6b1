// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/block_ledger.h"

#include <gtest/gtest.h>

#include <set>

#include "tandem/base/error.h"

namespace tandem::rollout {
namespace {

using Tokens = std::vector<int32_t>;

TEST(BlockLedger, HandsOutEachBlockOnceAndSaysWhenItIsEmpty) {
  BlockLedger ledger(5);
  std::set<int32_t> seen;
  for (int i = 0; i < 5; ++i) seen.insert(ledger.try_allocate());
  EXPECT_EQ(seen.size(), 5u);
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(ledger.try_allocate(), -1);
  ledger.release(3);
  EXPECT_EQ(ledger.try_allocate(), 3);
}

TEST(BlockLedger, ASharedBlockIsFreeAfterItsLastRelease) {
  BlockLedger ledger(2);
  const int32_t block = ledger.try_allocate();
  ledger.share(block);
  EXPECT_EQ(ledger.references(block), 2);
  ledger.release(block);
  EXPECT_EQ(ledger.references(block), 1);
  EXPECT_EQ(ledger.num_free(), 1);
  ledger.release(block);
  EXPECT_EQ(ledger.num_free(), 2);
}

TEST(BlockLedger, ReleasingTwiceAndSharingAFreeBlockOfUnknownContentAreBugs) {
  BlockLedger ledger(2);
  const int32_t block = ledger.try_allocate();
  ledger.release(block);
  EXPECT_THROW(ledger.release(block), InternalError);
  EXPECT_THROW(ledger.share(block), InternalError);
}

TEST(BlockLedger, FindsAContentByVersionWhatCameBeforeAndTokens) {
  BlockLedger ledger(4);
  const Tokens a = {1, 2, 3}, b = {1, 2, 4};
  const int32_t first = ledger.try_allocate(), second = ledger.try_allocate();
  EXPECT_EQ(ledger.record(first, {PolicyVersion{1}, 0, a}), first);
  EXPECT_EQ(ledger.record(second, {PolicyVersion{1}, ledger.name(first), a}), second);
  EXPECT_EQ(ledger.find({PolicyVersion{1}, 0, a}), first);
  EXPECT_EQ(ledger.find({PolicyVersion{1}, ledger.name(first), a}), second);
  EXPECT_EQ(ledger.find({PolicyVersion{2}, 0, a}), -1);
  EXPECT_EQ(ledger.find({PolicyVersion{1}, 0, b}), -1);
  EXPECT_EQ(ledger.find({PolicyVersion{1}, 77, a}), -1);
  EXPECT_EQ(ledger.record(ledger.try_allocate(), {PolicyVersion{1}, 0, a}), first);  // it is known already
}

TEST(BlockLedger, FindsTheLongestBegin) {
  BlockLedger ledger(4);
  const Tokens all = {1, 2, 3, 4, 5};
  for (size_t n : {2, 4}) ledger.record(ledger.try_allocate(), {PolicyVersion{0}, 0, std::span(all).first(n)});
  EXPECT_EQ(ledger.find_longest({PolicyVersion{0}, 0, all}), 1);
  EXPECT_EQ(ledger.find_longest({PolicyVersion{0}, 0, std::span(all).first(3)}), 0);
  EXPECT_EQ(ledger.find_longest({PolicyVersion{0}, 0, std::span(all).first(1)}), -1);
}

TEST(BlockLedger, AFreedBlockIsFoundUntilItIsUsedAgainAndTheLongestFreeGoesFirst) {
  BlockLedger ledger(3);
  const Tokens tokens[] = {{1}, {2}, {3}};
  for (const Tokens& t : tokens) ledger.record(ledger.try_allocate(), {PolicyVersion{0}, 0, t});
  for (int32_t b : {1, 0, 2}) ledger.release(b);
  ledger.share(1);
  ledger.release(1);  // used of late: 0 is the oldest now
  EXPECT_EQ(ledger.try_allocate(), 0);
  EXPECT_EQ(ledger.find({PolicyVersion{0}, 0, tokens[0]}), -1);
  EXPECT_EQ(ledger.find({PolicyVersion{0}, 0, tokens[1]}), 1);
  EXPECT_EQ(ledger.try_allocate(), 2);
  EXPECT_EQ(ledger.try_allocate(), 1);
}

}  // namespace
}  // namespace tandem::rollout
