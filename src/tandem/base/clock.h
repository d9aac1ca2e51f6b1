// SPDX-License-Identifier: Apache-2.0
#pragma once
// Monotonic time and deadlines: every wait takes a Deadline. And a mutex that is held for a moment.

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace tandem {

using Clock = std::chrono::steady_clock;

/// Seconds since an arbitrary start; only differences mean something.
inline double now_s() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

inline Clock::duration duration_of_s(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// A moment after which a wait is a failure.
class Deadline {
 public:
  static Deadline after_s(double seconds) { return Deadline(Clock::now() + duration_of_s(seconds)); }
  Clock::time_point time() const { return time_; }
  bool passed() const { return Clock::now() >= time_; }
  /// Below 0 once it has passed.
  double left_s() const { return std::chrono::duration<double>(time_ - Clock::now()).count(); }

 private:
  explicit Deadline(Clock::time_point time) : time_(time) {}
  Clock::time_point time_;
};

/// What `body` gives, which runs under the mutex.
template <class Body>
auto locked(std::mutex& mutex, const Body& body) {
  const std::lock_guard lock(mutex);
  return body();
}

/// Time as threads that wait for each other see it. A test may put its own in the place of the real one, in which an hour
/// passes at once when all threads wait.
///
/// Threads    any.
class WaitClock {
 public:
  virtual ~WaitClock() = default;
  virtual Clock::time_point now() = 0;
  /// Until notify_all, the moment, or for no reason. `lock` is held before and after.
  virtual void wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, Clock::time_point until) = 0;
  virtual void notify_all(std::condition_variable& changed) = 0;
  /// Threads that take part from now on, or no longer: announced before they start, and by each as it ends.
  virtual void threads_start(int count) = 0;
  virtual void thread_ends() = 0;
};

/// The clock on the wall. It keeps nothing, so all share it.
WaitClock& real_clock();

}  // namespace tandem
