// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a thread that sleeps in poll() hears from others of its process.

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "tandem/base/file/descriptor.h"

namespace tandem::comm {

/// Ownership  a descriptor that becomes readable.
/// Threads    any.
/// Blocking   never.
/// Errors     none.
class WakeUp {
 public:
  WakeUp() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  /// To be polled for POLLIN.
  int descriptor() const { return descriptor_.number(); }
  void call() const {
    const uint64_t one = 1;
    if (::write(descriptor(), &one, sizeof one) < 0) return;  // full: it is awake
  }
  /// The thread is awake: what was called so far counts no more.
  void heard() const {
    uint64_t count = 0;
    if (::read(descriptor(), &count, sizeof count) < 0) return;  // nobody called
  }

 private:
  const Descriptor descriptor_;
};

}  // namespace tandem::comm
