// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/kv_cache.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tandem/base/error.h"
#include "tandem/model/kernel/backend.h"

namespace tandem::rollout {
namespace {

constexpr CacheShape kShape{2, {4, 2, 8}, 16, at::kFloat};
const model::kernel::AttentionKernels& kKernels = model::kernel::cpu::backend().attention;

TEST(KvCache, CopyTakesKeysAndValuesOfEveryLayer) {
  device::Arena arena("device");
  KvCache cache(kKernels, kShape, 3, arena);
  cache.open();
  const auto sides = [&](int64_t layer) { return std::vector<at::Tensor>{cache.layer(layer).keys, cache.layer(layer).values}; };
  for (int64_t layer = 0; layer < 2; ++layer)
    for (const at::Tensor& side : sides(layer)) side[1].uniform_();
  cache.copy(1, 2);
  for (int64_t layer = 0; layer < 2; ++layer)
    for (const at::Tensor& side : sides(layer)) {
      EXPECT_TRUE(side[2].equal(side[1]));
      EXPECT_GT(side[1].min().item<float>() + side[1].max().item<float>(), 0.0f);
      EXPECT_TRUE(side[0].eq(0).all().item<bool>());
    }
}

TEST(KvCache, IsCountedInTheArena) {
  device::Arena arena("device");
  {
    KvCache cache(kKernels, kShape, 4, arena);
    EXPECT_EQ(arena.bytes("kv_cache"), 0) << "addresses alone";
    cache.open();
    EXPECT_EQ(arena.bytes("kv_cache"), 4 * kShape.bytes_per_block());
  }
  EXPECT_EQ(arena.bytes("kv_cache"), 0);
}

TEST(KvCache, ComesBackEmptyToTheAddressesItHad) {
  device::Arena arena("device");
  KvCache cache(kKernels, kShape, 4, arena);
  cache.open();
  const at::Tensor keys = cache.layer(1).keys;
  at::Tensor(keys).fill_(3);
  cache.close();
  EXPECT_FALSE(cache.is_open());
  EXPECT_EQ(arena.bytes("kv_cache"), 0);
  cache.open();
  EXPECT_EQ(cache.layer(1).keys.data_ptr(), keys.data_ptr());
  EXPECT_TRUE(keys.eq(0).all().item<bool>());
}

TEST(KvCache, WithoutRoomForAllOfItItHasNone) {
  device::Arena arena("device", 3 * kShape.bytes_per_block());
  KvCache cache(kKernels, kShape, 4, arena);
  EXPECT_THROW(cache.open(), UserError);
  EXPECT_FALSE(cache.is_open());
  EXPECT_EQ(arena.bytes(), 0);
}

}  // namespace
}  // namespace tandem::rollout
