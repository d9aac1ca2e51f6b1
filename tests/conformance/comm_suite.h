// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every communication backend must do. Each case is run by all ranks of a group, by threads and by processes alike.

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <vector>

#include "tandem/base/rng.h"
#include "tandem/comm/group.h"
#include "tandem/comm/mesh.h"

namespace tandem::comm::suite {

/// Values of mixed magnitude, so that another order of summation would show in the bits.
inline at::Tensor noise(int rank, int64_t count, at::ScalarType dtype) {
  RandomStream random(17, static_cast<uint64_t>(rank));
  at::Tensor values = at::empty({count}, at::kDouble);
  for (int64_t i = 0; i < count; ++i) values.mutable_data_ptr<double>()[i] = random.normal() * static_cast<double>(1 << random.below(12));
  return values.to(dtype);
}

inline at::Tensor sum_in_rank_order(int size, int64_t count, at::ScalarType dtype) {
  const at::ScalarType wide = dtype == at::kBFloat16 ? at::kFloat : dtype;
  at::Tensor sum = noise(0, count, dtype).to(wide);
  for (int r = 1; r < size; ++r) sum.add_(noise(r, count, dtype).to(wide));
  return sum.to(dtype);
}

inline void all_reduce_sums_in_rank_order(Group& g) {
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong})
    for (int64_t count : {0, 1, 7, 16, 1000, 5000, 100003}) {
      at::Tensor t = noise(g.rank(), count, dtype);
      g.all_reduce(t, ReduceOp::kSum);
      EXPECT_TRUE(at::equal(t, sum_in_rank_order(g.size(), count, dtype))) << count << " " << c10::toString(dtype);
    }
}

inline void all_reduce_takes_the_maximum(Group& g) {
  at::Tensor t = at::full({100}, g.rank(), at::kFloat);
  t[5] = -1.0 - g.rank();
  g.all_reduce(t, ReduceOp::kMax);
  EXPECT_EQ(t[0].item<float>(), g.size() - 1);
  EXPECT_EQ(t[5].item<float>(), -1);
  at::Tensor bad = at::full({3}, g.rank() == g.size() - 1 ? NAN : 1.0, at::kDouble);
  g.all_reduce(bad, ReduceOp::kMax);
  EXPECT_TRUE(std::isnan(bad[1].item<double>())) << "a NaN of one rank must reach all";
}

inline void broadcast_reaches_everyone(Group& g) {
  for (int root = 0; root < g.size(); ++root) {
    at::Tensor t = noise(g.rank(), 333, at::kBFloat16);
    g.broadcast(t, root);
    EXPECT_TRUE(at::equal(t, noise(root, 333, at::kBFloat16)));
  }
}

inline void all_gather_keeps_rank_order(Group& g) {
  at::Tensor out = at::empty({g.size() * 5}, at::kInt);
  g.all_gather(out, at::full({5}, g.rank(), at::kInt));
  for (int r = 0; r < g.size(); ++r) EXPECT_TRUE(at::equal(out.narrow(0, r * 5, 5), at::full({5}, r, at::kInt)));
}

inline void reduce_scatter_is_a_slice_of_all_reduce(Group& g) {
  const int64_t part = 1001;
  at::Tensor out = at::empty({part}, at::kFloat);
  g.reduce_scatter(out, noise(g.rank(), part * g.size(), at::kFloat));
  EXPECT_TRUE(at::equal(out, sum_in_rank_order(g.size(), part * g.size(), at::kFloat).narrow(0, part * g.rank(), part)));
}

/// Rank a sends a*10+b+1 bytes of value a*16+b to rank b, none where a + b is 3.
inline void all_to_all_v_moves_ragged_bytes(Group& g) {
  auto length = [](int from, int to) { return from + to == 3 ? 0 : int64_t{from} * 10 + to + 1; };
  std::vector<std::byte> send;
  std::vector<int64_t> send_bytes, receive_bytes;
  int64_t total = 0;
  for (int r = 0; r < g.size(); ++r) {
    send_bytes.push_back(length(g.rank(), r));
    receive_bytes.push_back(length(r, g.rank()));
    send.insert(send.end(), static_cast<size_t>(send_bytes.back()), std::byte(g.rank() * 16 + r));
    total += receive_bytes.back();
  }
  std::vector<std::byte> received(static_cast<size_t>(total));
  g.all_to_all_v(send, send_bytes, received, receive_bytes);
  size_t at = 0;
  for (int r = 0; r < g.size(); ++r)
    for (int64_t i = 0; i < receive_bytes[static_cast<size_t>(r)]; ++i) EXPECT_EQ(received[at++], std::byte(r * 16 + g.rank()));
}

inline void byte_strings_of_any_length_are_gathered(Group& g) {
  std::vector<std::byte> mine(static_cast<size_t>(g.rank() * 3), std::byte(g.rank()));
  const auto all = all_gather_bytes(g, mine);
  ASSERT_EQ(std::ssize(all), g.size());
  for (int r = 0; r < g.size(); ++r)
    EXPECT_EQ(all[static_cast<size_t>(r)], std::vector<std::byte>(static_cast<size_t>(r * 3), std::byte(r)));
}

inline void split_groups_are_independent(Group& g) {
  auto half = g.split(g.rank() % 2, "half");
  EXPECT_EQ(half->size(), (g.size() + 1 - g.rank() % 2) / 2);
  EXPECT_EQ(half->rank(), g.rank() / 2);
  at::Tensor t = at::full({1}, g.rank(), at::kLong);
  half->all_reduce(t, ReduceOp::kSum);
  int64_t expected = 0;
  for (int r = g.rank() % 2; r < g.size(); r += 2) expected += r;
  EXPECT_EQ(t.item<int64_t>(), expected);
  auto again = half->split(0, "again");
  EXPECT_EQ(again->name(), "again");
  again->barrier();
  g.barrier();
}

inline void mesh_axes_meet_the_right_peers(Group& g) {
  if (g.size() != 4) return;
  Mesh mesh(g, {.dp = 2, .tp = 2, .ep = 4});
  EXPECT_EQ(mesh.index(Axis::kTp), g.rank() % 2) << "tp is fastest";
  EXPECT_EQ(mesh.index(Axis::kDp), g.rank() / 2);
  EXPECT_EQ(mesh.along(Axis::kEp).size(), 4);
  EXPECT_EQ(mesh.along(Axis::kPp).size(), 1);
  at::Tensor t = at::full({1}, 1 << g.rank(), at::kLong);
  mesh.along(Axis::kTp).all_reduce(t, ReduceOp::kSum);
  EXPECT_EQ(t.item<int64_t>(), g.rank() < 2 ? 3 : 12);
  at::Tensor d = at::full({1}, 1 << g.rank(), at::kLong);
  mesh.along(Axis::kDp).all_reduce(d, ReduceOp::kSum);
  EXPECT_EQ(d.item<int64_t>(), g.rank() % 2 == 0 ? 5 : 10);
}

/// Many small operations of changing kind: ranks that are fast must not overtake slow ones' memory.
inline void a_long_series_keeps_its_order(Group& g) {
  for (int i = 0; i < 500; ++i) {
    at::Tensor t = at::full({i % 40 + 1}, g.rank() + i, at::kFloat);
    g.all_reduce(t, ReduceOp::kMax);
    ASSERT_EQ(t[0].item<float>(), g.size() - 1 + i);
    at::Tensor b = at::full({3}, g.rank(), at::kLong);
    g.broadcast(b, i % g.size());
    ASSERT_EQ(b[2].item<int64_t>(), i % g.size());
  }
}

struct Case {
  const char* name;
  void (*body)(Group&);
};
inline const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"AllReduceSumsInRankOrder", all_reduce_sums_in_rank_order},
      {"AllReduceTakesTheMaximum", all_reduce_takes_the_maximum},
      {"BroadcastReachesEveryone", broadcast_reaches_everyone},
      {"AllGatherKeepsRankOrder", all_gather_keeps_rank_order},
      {"ReduceScatterIsASliceOfAllReduce", reduce_scatter_is_a_slice_of_all_reduce},
      {"AllToAllVMovesRaggedBytes", all_to_all_v_moves_ragged_bytes},
      {"ByteStringsOfAnyLengthAreGathered", byte_strings_of_any_length_are_gathered},
      {"SplitGroupsAreIndependent", split_groups_are_independent},
      {"MeshAxesMeetTheRightPeers", mesh_axes_meet_the_right_peers},
      {"ALongSeriesKeepsItsOrder", a_long_series_keeps_its_order},
  };
  return all;
}

}  // namespace tandem::comm::suite
