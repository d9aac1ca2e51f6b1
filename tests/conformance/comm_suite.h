// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every communication backend must do. Each case is run by all ranks of a group, by threads and by processes alike.

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "../counting_group.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
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

inline at::Tensor received(Group& g, int64_t count, int from, int tag) {
  at::Tensor t = at::empty({count}, at::kFloat);
  g.receive(t, from, tag);
  return t;
}

/// Everyone sends to everyone, itself included, before anyone receives; the large ones fit into no buffer of a backend.
inline void all_may_send_before_they_receive(Group& g) {
  for (int64_t count : {0, 1, 1000, 3 << 20}) {
    for (int r = 0; r < g.size(); ++r) g.send(at::full({count}, g.rank() * 10 + r, at::kFloat), r, 7);
    for (int r = 0; r < g.size(); ++r)
      EXPECT_TRUE(at::equal(received(g, count, r, 7), at::full({count}, r * 10 + g.rank(), at::kFloat))) << count << " from " << r;
  }
}

inline void tags_are_taken_in_any_order(Group& g) {
  const int next = (g.rank() + 1) % g.size(), before = (g.rank() + g.size() - 1) % g.size();
  constexpr int kTags = 101, kEach = 3;
  auto value = [](int rank, int tag, int i) { return static_cast<float>(rank * 1000 + tag * kEach + i); };
  for (int i = 0; i < kEach; ++i)
    for (int tag = 0; tag < kTags; ++tag) g.send(at::full({tag % 5 + 1}, value(g.rank(), tag, i), at::kFloat), next, tag * 10007);
  for (int k = 0; k < kTags; ++k) {
    const int tag = k * 37 % kTags;
    for (int i = 0; i < kEach; ++i) EXPECT_EQ(received(g, tag % 5 + 1, before, tag * 10007)[0].item<float>(), value(before, tag, i)) << tag;
  }
}

inline void the_sender_may_write_its_tensor_at_once(Group& g) {
  const int next = (g.rank() + 1) % g.size(), before = (g.rank() + g.size() - 1) % g.size();
  at::Tensor t = at::empty({1 << 18}, at::kFloat);
  for (int i = 0; i < 20; ++i) {
    t.fill_(i);
    g.send(t, next, 0);
  }
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(at::equal(received(g, 1 << 18, before, 0), at::full({1 << 18}, i, at::kFloat)));
}

inline void a_rank_asks_for_a_message_without_waiting(Group& g) {
  const int next = (g.rank() + 1) % g.size(), before = (g.rank() + g.size() - 1) % g.size();
  EXPECT_FALSE(g.arrived(before, 3));
  g.barrier();  // all have asked
  for (int64_t count : {0, 4, 3 << 20}) {
    g.send(at::full({2}, g.rank(), at::kFloat), next, 4);
    g.send(at::full({count}, g.rank(), at::kFloat), next, 3);
    const Deadline deadline = Deadline::after_s(30);
    while (!g.arrived(before, 3) && !deadline.passed()) std::this_thread::yield();
    EXPECT_TRUE(g.arrived(before, 3)) << "asked twice, it is still there";
    EXPECT_TRUE(g.arrived(before, 4));
    EXPECT_FALSE(g.arrived(before, 5));
    EXPECT_TRUE(at::equal(received(g, count, before, 3), at::full({count}, before, at::kFloat)));
    EXPECT_FALSE(g.arrived(before, 3));
    EXPECT_EQ(received(g, 2, before, 4)[1].item<float>(), static_cast<float>(before));
    g.barrier();  // nobody sends the next before all have asked
  }
}

/// Messages pass collectives of the same group and of others, and arrive when the sender's group is gone.
inline void messages_stand_beside_collectives(Group& g) {
  const int next = (g.rank() + 1) % g.size(), before = (g.rank() + g.size() - 1) % g.size();
  auto line = g.split(0, "line");
  auto half = g.split(g.rank() % 2, "half");
  for (int i = 0; i < 50; ++i) {
    line->send(at::full({40000}, i, at::kFloat), next, i);
    half->barrier();
    at::Tensor sum = at::full({10}, 1, at::kFloat);
    if (i % 3 == 0) line->all_reduce(sum, ReduceOp::kSum);
    else g.all_reduce(sum, ReduceOp::kSum);
    EXPECT_EQ(sum[3].item<float>(), g.size());
    if (i % 2 == 0) continue;
    for (int j : {i, i - 1}) EXPECT_EQ(received(*line, 40000, before, j)[39999].item<float>(), j);
  }
  auto last = g.split(0, "last");
  last->send(at::full({1 << 20}, 5, at::kFloat), next, 1);
  if (g.rank() % 2 == 1) {
    EXPECT_EQ(received(*last, 1 << 20, before, 1)[9].item<float>(), 5);
    last.reset();
    g.barrier();
  } else {
    g.barrier();
    EXPECT_EQ(received(*last, 1 << 20, before, 1)[9].item<float>(), 5);
  }
  g.barrier();
}

/// A group that one thread split serves another one, while the first goes on with its own.
inline void threads_use_groups_of_their_own(Group& g) {
  auto mine = g.split(0, "mine");
  const int next = (g.rank() + 1) % g.size(), before = (g.rank() + g.size() - 1) % g.size();
  auto series = [&](Group& group, float start) {
    for (int i = 0; i < 200; ++i) {
      at::Tensor t = at::full({i * 20}, start + static_cast<float>(i), at::kFloat);
      group.all_reduce(t, ReduceOp::kMax);
      group.send(t, next, i);
      ASSERT_TRUE(at::equal(received(group, i * 20, before, i), at::full({i * 20}, start + static_cast<float>(i), at::kFloat)));
    }
  };
  std::thread other([&] { series(*mine, 1000); });
  series(g, 0);
  other.join();
}

inline void traffic_is_what_the_formula_says(Group& any) {
  test::CountingGroup g(any);
  const int64_t n = g.size(), b = 4000;
  at::Tensor part = at::zeros({1000}, at::kFloat), all = at::zeros({n * 1000}, at::kFloat);
  for (int i = 0; i < 2; ++i) {
    g.barrier();
    g.broadcast(part, 0);
    g.all_reduce(part, ReduceOp::kSum);
    g.all_gather(all, part);
    g.reduce_scatter(part, all);
    g.send(part, (g.rank() + 1) % g.size(), i);
    g.receive(part, (g.rank() + g.size() - 1) % g.size(), i);
  }
  std::vector<std::byte> from(static_cast<size_t>(n * n * 100)), to(from.size());
  std::vector<int64_t> out, in;
  for (int r = 0; r < g.size(); ++r) out.push_back(g.rank() * 10 + r), in.push_back(r * 10 + g.rank());
  g.all_to_all_v(from, out, to, in);
  const int64_t to_others = g.rank() * 10 * (n - 1) + n * (n - 1) / 2 - g.rank();
  const std::array<test::Traffic::Count, kNumOperations> expected = {{{2, 0},                                      // barrier
                                                                {2, g.rank() == 0 ? 2 * b * (n - 1) : 0},    // broadcast
                                                                {2, 2 * (2 * b * (n - 1) / n)},              // all_reduce
                                                                {2, 2 * b * (n - 1)},                        // all_gather
                                                                {2, 2 * n * b * (n - 1) / n},                // reduce_scatter
                                                                {1, to_others},                              // all_to_all_v
                                                                {2, n == 1 ? 0 : 2 * b},                     // send
                                                                {2, 0},                                      // receive
                                                                {0, 0}}};                                    // split
  int64_t sum = 0;
  for (int op = 0; op < kNumOperations; ++op) {
    const auto operation = static_cast<Operation>(op);
    const test::Traffic::Count& count = g.traffic().of(operation);
    EXPECT_EQ(count.calls, expected[static_cast<size_t>(op)].calls) << operation_name(operation);
    EXPECT_EQ(count.bytes, expected[static_cast<size_t>(op)].bytes) << operation_name(operation);
    sum += count.bytes;
  }
  EXPECT_EQ(g.traffic().bytes(), sum);
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
      {"AllMaySendBeforeTheyReceive", all_may_send_before_they_receive},
      {"TagsAreTakenInAnyOrder", tags_are_taken_in_any_order},
      {"TheSenderMayWriteItsTensorAtOnce", the_sender_may_write_its_tensor_at_once},
      {"ARankAsksForAMessageWithoutWaiting", a_rank_asks_for_a_message_without_waiting},
      {"MessagesStandBesideCollectives", messages_stand_beside_collectives},
      {"ThreadsUseGroupsOfTheirOwn", threads_use_groups_of_their_own},
      {"TrafficIsWhatTheFormulaSays", traffic_is_what_the_formula_says},
  };
  return all;
}

inline void send_of(Group& g, int64_t count) { g.send(at::zeros({count}, at::kFloat), 0, 5); }

/// What ends a group of two: rank 1 is to blame, and rank 0, which runs `receive_four`, says so.
struct Fault {
  const char* name;
  double deadline_s;
  void (*culprit)(Group&);
  const char* survivor_says;
};
inline const std::vector<Fault>& message_faults() {
  static const std::vector<Fault> all = {
      {"TooShort", 60, [](Group& g) { send_of(g, 3); g.barrier(); }, "rank 0: receive in group 'world' with rank 1: "},
      {"TooLong", 60, [](Group& g) { send_of(g, 5); g.barrier(); }, "rank 0: receive in group 'world' with rank 1: "},
      {"MuchTooLong", 60, [](Group& g) { send_of(g, 1 << 20); g.barrier(); }, "rank 0: receive in group 'world' with rank 1: "},
      {"Late", 0.5, [](Group& g) { std::this_thread::sleep_for(std::chrono::milliseconds(1500)); send_of(g, 4); },
       "rank 0: receive in group 'world': no sign of rank 1 within 0.5 s"},
      {"OtherTag", 0.5, [](Group& g) { g.send(at::zeros({4}, at::kFloat), 0, 6); },
       "rank 0: receive in group 'world': no sign of rank 1 within 0.5 s"},
      {"Aborted", 60, [](Group& g) { g.abort("told to stop"); g.barrier(); }, "rank 0: receive in group 'world' ended: told to stop"},
  };
  return all;
}
inline void receive_four(Group& g) {
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // a culprit that has ended waits longer for this rank than this one for it
  received(g, 4, 1, 5);
}

/// One of the two ranks of a fault; `said` is what the survivor's error says.
inline void play(const Fault& fault, Group& g, std::string& said) {
  if (g.rank() == 1) return fault.culprit(g);
  try {
    receive_four(g);
  } catch (const PeerError& e) {
    said = e.what();
    throw;
  }
}

}  // namespace tandem::comm::suite
