// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/kv_cache.h"

#include <gtest/gtest.h>

namespace tandem::rollout {
namespace {

constexpr CacheShape kShape{2, 2, 8, 2, 16, at::kFloat};

TEST(KvCache, CopyTakesKeysAndValuesOfEveryLayer) {
  device::Arena arena("device");
  KvCache cache(kShape, 3, arena);
  const int64_t elements = kShape.num_kv_heads * kShape.head_dim * kShape.block_tokens;
  for (int64_t layer = 0; layer < 2; ++layer)
    for (void* side : {cache.layer(layer).keys, cache.layer(layer).values}) {
      const auto base = static_cast<float>(100 * layer + (side == cache.layer(layer).keys));
      for (int64_t i = 0; i < elements; ++i) static_cast<float*>(side)[elements + i] = base + static_cast<float>(i % 97);
    }
  cache.copy(1, 2);
  for (int64_t layer = 0; layer < 2; ++layer)
    for (void* side : {cache.layer(layer).keys, cache.layer(layer).values})
      for (int64_t i = 0; i < elements; ++i) {
        ASSERT_EQ(static_cast<float*>(side)[2 * elements + i], static_cast<float*>(side)[elements + i]);
        ASSERT_EQ(static_cast<float*>(side)[i], 0.0f);
      }
}

TEST(KvCache, IsCountedInTheArena) {
  device::Arena arena("device");
  {
    KvCache cache(kShape, 4, arena);
    EXPECT_EQ(arena.bytes("kv_cache"), 4 * kShape.bytes_per_block());
  }
  EXPECT_EQ(arena.bytes("kv_cache"), 0);
}

}  // namespace
}  // namespace tandem::rollout
