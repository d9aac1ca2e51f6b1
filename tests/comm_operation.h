// SPDX-License-Identifier: Apache-2.0
#pragma once
// Each operation of a group once, with a result that is known: what fault tests run until something goes wrong.

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <array>
#include <vector>

#include "tandem/comm/group.h"

namespace tandem::comm {

enum class Operation { kBarrier, kBroadcast, kAllReduce, kAllGather, kReduceScatter, kAllToAllV, kSend, kReceive, kSplit };
inline constexpr int kNumOperations = 9;
/// As errors name it, such as `all_reduce`.
inline const char* operation_name(Operation operation) {
  constexpr std::array<const char*, kNumOperations> kNames = {"barrier",      "broadcast", "all_reduce", "all_gather", "reduce_scatter",
                                                              "all_to_all_v", "send",      "receive",    "split"};
  return kNames[static_cast<size_t>(operation)];
}

/// Whether the result is right, so that a fault that only spoils numbers shows. send and receive are one: a ring.
inline bool operation_is_right(Group& g, Operation operation) {
  const int64_t n = g.size();
  const int next = (g.rank() + 1) % g.size(), before = (g.rank() + g.size() - 1) % g.size();
  at::Tensor one = at::full({64}, g.rank() + 1, at::kFloat), all = at::full({n * 64}, g.rank() + 1, at::kFloat);
  const auto total = static_cast<float>(n * (n + 1) / 2);
  std::vector<std::byte> out(static_cast<size_t>(n), std::byte(g.rank())), in(static_cast<size_t>(n));
  const std::vector<int64_t> ones(static_cast<size_t>(n), 1);
  switch (operation) {
    case Operation::kBarrier: g.barrier(); return true;
    case Operation::kBroadcast: g.broadcast(one, g.size() - 1); return one[5].item<float>() == static_cast<float>(n);
    case Operation::kAllReduce: g.all_reduce(one, ReduceOp::kSum); return one[63].item<float>() == total;
    case Operation::kAllGather: g.all_gather(all, one); return all[n * 64 - 1].item<float>() == static_cast<float>(n);
    case Operation::kReduceScatter: g.reduce_scatter(one, all); return one[0].item<float>() == total;
    case Operation::kAllToAllV: g.all_to_all_v(out, ones, in, ones); return in.back() == std::byte(n - 1);
    case Operation::kSend:
    case Operation::kReceive:
      g.send(one, next, 3);
      g.receive(one, before, 3);
      return one[1].item<float>() == static_cast<float>(before + 1);
    case Operation::kSplit: return g.split(g.rank() / 2, "pair")->size() == (g.rank() / 2 * 2 + 1 < n ? 2 : 1);
  }
  return false;
}

}  // namespace tandem::comm
