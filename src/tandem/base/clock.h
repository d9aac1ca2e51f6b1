// SPDX-License-Identifier: Apache-2.0
#pragma once
// Monotonic time and deadlines. Every wait takes a Deadline.

#include <chrono>

namespace tandem {

using Clock = std::chrono::steady_clock;

/// Seconds since an arbitrary start; only differences mean something.
inline double now_s() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

/// A moment after which a wait is a failure.
class Deadline {
 public:
  static Deadline after_s(double seconds) {
    return Deadline(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
  }
  Clock::time_point time() const { return time_; }
  bool passed() const { return Clock::now() >= time_; }

 private:
  explicit Deadline(Clock::time_point time) : time_(time) {}
  Clock::time_point time_;
};

}  // namespace tandem
