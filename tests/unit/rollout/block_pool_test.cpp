// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/block_pool.h"

#include <gtest/gtest.h>

#include <set>

#include "tandem/base/error.h"

namespace tandem::rollout {
namespace {

constexpr CacheShape kShape{2, 2, 8, 2, 16, at::kFloat};

TEST(BlockPool, HandsOutEachBlockOnceAndSaysWhenItIsEmpty) {
  device::Arena arena("device");
  BlockPool pool(kShape, 5, arena);
  std::set<int32_t> seen;
  for (int i = 0; i < 5; ++i) seen.insert(pool.try_allocate());
  EXPECT_EQ(seen.size(), 5u);
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(pool.try_allocate(), -1);
  pool.release(3);
  EXPECT_EQ(pool.try_allocate(), 3);
}

TEST(BlockPool, ASharedBlockIsFreeAfterItsLastRelease) {
  device::Arena arena("device");
  BlockPool pool(kShape, 2, arena);
  const int32_t block = pool.try_allocate();
  pool.share(block);
  EXPECT_TRUE(pool.shared(block));
  pool.release(block);
  EXPECT_FALSE(pool.shared(block));
  EXPECT_EQ(pool.num_free(), 1);
  pool.release(block);
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(BlockPool, ReleasingTwiceAndSharingAFreeBlockAreBugs) {
  device::Arena arena("device");
  BlockPool pool(kShape, 2, arena);
  const int32_t block = pool.try_allocate();
  pool.release(block);
  EXPECT_THROW(pool.release(block), InternalError);
  EXPECT_THROW(pool.share(block), InternalError);
}

TEST(BlockPool, CopyTakesKeysAndValuesOfEveryLayer) {
  device::Arena arena("device");
  BlockPool pool(kShape, 3, arena);
  const int64_t elements = kShape.num_kv_heads * kShape.head_dim * kShape.block_tokens;
  for (int64_t layer = 0; layer < 2; ++layer)
    for (void* side : {pool.layer(layer).keys, pool.layer(layer).values})
      for (int64_t i = 0; i < elements; ++i) static_cast<float*>(side)[elements + i] = static_cast<float>(100 * layer + i % 97 + (side == pool.layer(layer).keys));
  pool.copy(1, 2);
  for (int64_t layer = 0; layer < 2; ++layer)
    for (void* side : {pool.layer(layer).keys, pool.layer(layer).values})
      for (int64_t i = 0; i < elements; ++i) {
        ASSERT_EQ(static_cast<float*>(side)[2 * elements + i], static_cast<float*>(side)[elements + i]);
        ASSERT_EQ(static_cast<float*>(side)[i], 0.0f);
      }
}

TEST(BlockPool, TheCacheIsCountedInTheArena) {
  device::Arena arena("device");
  {
    BlockPool pool(kShape, 4, arena);
    EXPECT_EQ(arena.bytes("kv_cache"), 4 * kShape.bytes_per_block());
  }
  EXPECT_EQ(arena.bytes("kv_cache"), 0);
}

}  // namespace
}  // namespace tandem::rollout
