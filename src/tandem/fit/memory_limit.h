// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much more memory this process may take.

#include <cstdint>
#include <string>

namespace tandem::fit {

struct MemoryLimit {
  int64_t bytes = 0;   ///< from now on
  std::string from;    ///< what bounds it, for people
};

/// The least of what the machine has free, what a control group leaves, and what `ulimit -d` and `ulimit -v` leave; less a reserve for
/// what is not counted. Errors: none; without any answer of the system it is 0.
MemoryLimit memory_limit();

}  // namespace tandem::fit
