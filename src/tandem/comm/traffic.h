// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a rank sends to others, counted by operation. docs/communication.md has the formulas.

#include <array>
#include <cstddef>
#include <cstdint>

namespace tandem::comm {

enum class Operation { kBarrier, kBroadcast, kAllReduce, kAllGather, kReduceScatter, kAllToAllV, kSend, kReceive, kSplit };
inline constexpr int kNumOperations = 9;
/// As errors name it, such as `all_reduce`.
inline const char* operation_name(Operation operation) {
  constexpr std::array<const char*, kNumOperations> kNames = {"barrier",      "broadcast", "all_reduce", "all_gather", "reduce_scatter",
                                                              "all_to_all_v", "send",      "receive",    "split"};
  return kNames[static_cast<size_t>(operation)];
}

/// Calls, and the bytes this rank sent to other ranks. The same for every backend: what the operation has to move at
/// least, not what a backend happens to move.
struct Traffic {
  struct Count {
    int64_t calls = 0, bytes = 0;
  };
  const Count& of(Operation operation) const { return by_operation[static_cast<size_t>(operation)]; }
  /// Of all operations.
  int64_t bytes() const {
    int64_t sum = 0;
    for (const Count& count : by_operation) sum += count.bytes;
    return sum;
  }

  std::array<Count, kNumOperations> by_operation;
};

}  // namespace tandem::comm
