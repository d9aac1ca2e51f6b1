// SPDX-License-Identifier: Apache-2.0
#pragma once
// What comm_suite.h asks, of tensors on the device that a group carries from device to device. Whole numbers, so that no order of a sum
// shows.

#include <gtest/gtest.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include "tandem/comm/group.h"

namespace tandem::comm::device_suite {

inline at::Tensor full(const Group& g, int64_t count, int64_t value, at::ScalarType dtype = at::kFloat) {
  return at::full({count}, value, at::device(g.nearest_device()).dtype(dtype));
}

inline void collectives(Group& g) {
  const int n = g.size(), sum = n * (n - 1) / 2;
  g.barrier();
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong})
    for (int64_t count : {0, 1, 1000, 1 << 20}) {
      at::Tensor t = full(g, count, g.rank(), dtype), top = full(g, count, g.rank(), dtype), from = full(g, count, g.rank(), dtype);
      g.all_reduce(t, ReduceOp::kSum);
      EXPECT_TRUE(at::equal(t, full(g, count, sum, dtype)));
      g.all_reduce(top, ReduceOp::kMax);
      EXPECT_TRUE(at::equal(top, full(g, count, n - 1, dtype)));
      g.broadcast(from, n - 1);
      EXPECT_TRUE(at::equal(from, full(g, count, n - 1, dtype)));
      at::Tensor all = full(g, n * count, -1, dtype), part = full(g, count, -1, dtype);
      g.all_gather(all, full(g, count, g.rank(), dtype));
      for (int r = 0; r < n; ++r) EXPECT_TRUE(at::equal(all.narrow(0, r * count, count), full(g, count, r, dtype)));
      g.reduce_scatter(part, all);
      EXPECT_TRUE(at::equal(part, full(g, count, n * g.rank(), dtype)));
    }
}

// Rank a sends a + 2 b bytes of value 16 a + b to rank b.
inline void ragged_bytes(Group& g) {
  std::vector<int64_t> out, in;
  std::vector<at::Tensor> sent, expected;
  for (int r = 0; r < g.size(); ++r) {
    out.push_back(g.rank() + 2 * r), in.push_back(r + 2 * g.rank());
    sent.push_back(full(g, out.back(), 16 * g.rank() + r, at::kByte));
    expected.push_back(full(g, in.back(), 16 * r + g.rank(), at::kByte));
  }
  const at::Tensor from = at::cat(sent), right = at::cat(expected);
  at::Tensor to = at::zeros_like(right);
  g.all_to_all_v(from, out, to, in);
  EXPECT_TRUE(at::equal(to, right));
}

// Everyone sends to everyone before anyone receives, and takes the tags in another order.
inline void messages(Group& g, int64_t count) {
  for (int tag : {1, 2})
    for (int r = 0; r < g.size(); ++r) g.send(full(g, count + tag, 100 * tag + 10 * g.rank() + r), r, tag);
  for (int tag : {2, 1})
    for (int r = 0; r < g.size(); ++r) {
      at::Tensor t = full(g, count + tag, -1);
      g.receive(t, r, tag);
      EXPECT_TRUE(at::equal(t, full(g, count + tag, 100 * tag + 10 * r + g.rank()))) << r;
    }
}

/// Asks all of it, of the group and of one split from it, with messages of that many elements.
inline void everything(Group& world, int64_t message_elements) {
  const auto ask = [&](Group& g) {
    collectives(g);
    ragged_bytes(g);
    messages(g, message_elements);
  };
  ask(world);
  ask(*world.split(world.rank() % 2, "half"));
  const std::vector<std::byte> mine(static_cast<size_t>(world.rank()) + 1, std::byte(world.rank()));
  const auto all = all_gather_bytes(world, mine);
  for (size_t r = 0; r < all.size(); ++r) EXPECT_EQ(all[r], std::vector<std::byte>(r + 1, std::byte(r)));
}

}  // namespace tandem::comm::device_suite
