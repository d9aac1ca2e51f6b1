// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much more memory this process may take.

#include <cstdint>
#include <iosfwd>
#include <string>

namespace tandem::device {

struct MemoryLimit {
  int64_t bytes = 0;   ///< from now on
  std::string from;    ///< what bounds it, for people
};

/// The least of what the machine has free, what a control group leaves, and what `ulimit -d` and `ulimit -v` leave; less a reserve for
/// what is not counted. Errors: none; without any answer of the system it is 0.
MemoryLimit memory_limit();

/// What the control groups of `groups`, lines as /proc/self/cgroup has them, and all groups above leave, by the files below `root`; the
/// largest number where none has a limit.
int64_t left_in_groups(std::istream& groups, const std::string& root);

}  // namespace tandem::device
