// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/traffic.h"

namespace tandem::comm {

const char* operation_name(Operation operation) {
  constexpr std::array<const char*, kNumOperations> kNames = {"barrier",      "broadcast", "all_reduce", "all_gather", "reduce_scatter",
                                                              "all_to_all_v", "send",      "receive",    "split"};
  return kNames[static_cast<size_t>(operation)];
}

int64_t Traffic::bytes() const {
  int64_t sum = 0;
  for (const Count& count : by_operation) sum += count.bytes;
  return sum;
}

}  // namespace tandem::comm
