// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a process says of memory that it shares (shared_memory.h). A value that messages carry, so it needs nothing else.

#include <cstdint>

namespace tandem::comm {

/// How another process of the machine finds it; to be sent as bytes.
struct SharedHandle {
  int64_t process = 0, file = 0;
  int64_t serial = 0;     ///< of the memories of its process
  int64_t num_bytes = 0;
};

}  // namespace tandem::comm
