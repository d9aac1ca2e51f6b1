// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/swappable.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "tandem/base/error.h"

namespace tandem::device {
namespace {

constexpr int64_t kSwapped = 100'000;

at::Tensor numbers() { return at::arange(kSwapped, at::kFloat); }

TEST(Swappable, LeavesForTheHostAndComesBackWithItsContents) {
  Arena device("device"), host("host");
  Swappable state({device, "optimizer", &host, Keep::kContents}, kSwapped, at::kFloat);
  const at::Tensor view = state.tensor().narrow(0, 10, 10);
  state.tensor().copy_(numbers());
  EXPECT_EQ(state.leave(), kSwapped * 4);
  EXPECT_TRUE(state.is_away());
  EXPECT_EQ(device.bytes(), 0);
  EXPECT_EQ(host.by_owner().at("optimizer"), kSwapped * 4);
  EXPECT_TRUE(at::equal(state.contents(), numbers())) << "read where it is";
  EXPECT_EQ(state.come_back(), kSwapped * 4);
  EXPECT_TRUE(at::equal(state.tensor(), numbers()));
  view.fill_(-1);
  state.leave();
  EXPECT_EQ(host.peak_bytes(), kSwapped * 4) << "the copy's memory is used again";
  EXPECT_EQ(state.contents()[10].item<float>(), -1) << "what changed on the device is what the host has";
}

TEST(Swappable, WhatIsAwayOrPresentAlreadyIsNotCopiedAgain) {
  Arena device("device"), host("host");
  Swappable state({device, "optimizer", &host, Keep::kContents}, kSwapped, at::kFloat);
  EXPECT_EQ(state.come_back(), 0);
  state.leave();
  EXPECT_EQ(state.leave(), 0);
}

TEST(Swappable, AnOriginalIsCopiedOnce) {
  Arena device("device"), host("host");
  Swappable reference({device, "reference_weights", &host, Keep::kOriginal}, kSwapped, at::kFloat);
  reference.tensor().copy_(numbers());
  EXPECT_EQ(reference.leave(), kSwapped * 4);
  EXPECT_EQ(reference.come_back(), kSwapped * 4);
  EXPECT_EQ(reference.leave(), 0) << "the host still has it";
  EXPECT_TRUE(at::equal(reference.contents(), numbers()));
}

TEST(Swappable, WhereNothingIsKeptZerosComeBackAndNoHostIsNeeded) {
  Arena device("device");
  Swappable grads({device, "gradients", nullptr, Keep::kNothing}, kSwapped, at::kFloat);
  grads.tensor().fill_(2);
  EXPECT_EQ(grads.leave(), 0);
  EXPECT_EQ(device.bytes(), 0);
  EXPECT_EQ(grads.come_back(), 0);
  EXPECT_EQ(grads.tensor().sum().item<float>(), 0);
}

TEST(Swappable, ChunksGoOneByOneAndTheDeviceNeverHoldsMore) {
  Arena device("device"), host("host");
  Swappable weights({device, "weights", &host, Keep::kContents}, kSwapped, at::kBFloat16);
  weights.tensor().copy_(numbers());
  const at::Tensor before = weights.tensor().clone();
  const auto [first, last] = weights.chunks_of(40'000, 40'001);
  EXPECT_EQ(last - first, 1);
  for (int64_t chunk = 0; chunk < weights.num_chunks(); chunk += 2) weights.leave(chunk, chunk + 1);
  EXPECT_FALSE(weights.is_away() || weights.is_present());
  EXPECT_THROW(weights.contents(), InternalError);
  weights.leave();
  EXPECT_TRUE(at::equal(weights.contents(), before));
  for (int64_t chunk = weights.num_chunks() - 1; chunk >= 0; --chunk) weights.come_back(chunk, chunk + 1);
  EXPECT_TRUE(at::equal(weights.tensor(), before));
  EXPECT_EQ(device.peak_bytes(), kSwapped * 2);
}

}  // namespace
}  // namespace tandem::device
