// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/kv_cache.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tandem/model/kernel/backend.h"

namespace tandem::rollout {
namespace {

constexpr CacheShape kShape{2, {4, 2, 8}, 16, at::kFloat};
const model::kernel::AttentionKernels& kKernels = model::kernel::cpu::backend().attention;

TEST(KvCache, CopyTakesKeysAndValuesOfEveryLayer) {
  device::Arena arena("device");
  KvCache cache(kKernels, kShape, 3, arena);
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
    EXPECT_EQ(arena.bytes("kv_cache"), 4 * kShape.bytes_per_block());
  }
  EXPECT_EQ(arena.bytes("kv_cache"), 0);
}

}  // namespace
}  // namespace tandem::rollout
