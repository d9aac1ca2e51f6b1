// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/arena.h"

#include <gtest/gtest.h>

#include "tandem/base/error.h"

namespace tandem::device {
namespace {

constexpr int64_t kElements = 200'000;  // a dozen chunks and part of one

TEST(Arena, CountsWhoHoldsWhatAndTheMostThatWasHeld) {
  Arena arena("device");
  at::Tensor weights = arena.allocate("weights", {1000}, at::kFloat);
  {
    const at::Tensor cache = arena.allocate("kv_cache", {10, 10}, at::kBFloat16);
    EXPECT_EQ(arena.by_owner(), (std::map<Owner, int64_t>{{"weights", 4000}, {"kv_cache", 200}}));
  }
  EXPECT_EQ(arena.bytes(), 4000);
  EXPECT_EQ(arena.peak_bytes(), 4200);
  EXPECT_EQ(arena.take_stage_peak_bytes(), 4200);
  EXPECT_EQ(arena.take_stage_peak_bytes(), 4000) << "a new stage begins with what is held";
  weights = at::Tensor();
  EXPECT_EQ(arena.bytes(), 0);
}

TEST(Arena, ABudgetRefusesAndNamesWhoAsked) {
  Arena arena("device", 1000);
  const at::Tensor held = arena.allocate("weights", {200}, at::kFloat);
  EXPECT_EQ(arena.left_bytes(), 200);
  try {
    arena.allocate("kv_cache", {51}, at::kFloat);
    FAIL() << "204 bytes of the 200 that are left";
  } catch (const UserError& e) {
    const std::string said = e.what(), wanted = "memory.device_mib: kv_cache needs 204 bytes, but 200 are left: 800 of 1000 are held";
    EXPECT_TRUE(said.starts_with(wanted + " (weights 800 B)")) << said;
  }
  EXPECT_EQ(arena.bytes(), 800);
  EXPECT_EQ(Arena("host").left_bytes(), std::nullopt);
}

TEST(Region, ItsAddressStaysWhileMemoryComesAndGoes) {
  Arena arena("device");
  Region region = arena.reserve("weights", {kElements}, at::kFloat);
  EXPECT_EQ(arena.bytes(), 0);
  EXPECT_EQ(region.backed_bytes(), 0);
  const at::Tensor part = region.tensor().narrow(0, 1000, 50);
  region.back();
  EXPECT_EQ(arena.bytes(), kElements * 4);
  part.fill_(3);
  region.release();
  EXPECT_EQ(arena.bytes(), 0);
  region.back();
  EXPECT_EQ(part.sum().item<float>(), 0) << "new memory is zero";
  EXPECT_EQ(part.data_ptr<float>(), region.tensor().data_ptr<float>() + 1000);
}

TEST(Region, ChunksAreCountedToTheByteAndTwiceIsOnce) {
  Arena arena("device");
  Region region = arena.reserve("weights", {kElements}, at::kFloat);
  const int64_t last = region.num_chunks() - 1;
  region.back(0, 2);
  region.back(1, 3);
  EXPECT_EQ(arena.bytes(), 3 * region.chunk_bytes());
  region.back(last, last + 1);
  EXPECT_EQ(arena.bytes(), 3 * region.chunk_bytes() + kElements * 4 - last * region.chunk_bytes());
  region.release(1, 2);
  region.release(0, 2);
  EXPECT_TRUE(!region.is_backed(0) && !region.is_backed(1) && region.is_backed(2) && region.is_backed(last));
  region = {};
  EXPECT_EQ(arena.bytes(), 0) << "the last user's memory is given back";
}

TEST(Region, BackingBeyondTheBudgetBacksNothing) {
  Arena arena("device", 3 * (64 << 10));
  Region region = arena.reserve("weights", {kElements}, at::kFloat);
  region.back(0, 2);
  EXPECT_THROW(region.back(), UserError);
  EXPECT_EQ(arena.bytes(), 2 * region.chunk_bytes());
  EXPECT_FALSE(region.is_backed(2));
}

TEST(RegionDeathTest, WhatHasNoMemoryIsAFaultNotAZero) {
  Arena arena("device");
  Region region = arena.reserve("weights", {kElements}, at::kFloat);
  EXPECT_DEATH(region.tensor().data_ptr<float>()[7] = 1, "");
}

}  // namespace
}  // namespace tandem::device
