// SPDX-License-Identifier: Apache-2.0
#pragma once
// A thread that makes one call at a time for its owner, who does something else meanwhile.

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace tandem::reshard {

/// Ownership  owns and joins its thread.
/// Threads    used by one other thread.
/// Blocking   wait, and the destructor, until the call under way ends: the call itself has the deadline.
class Courier {
 public:
  Courier() : thread_([this] { work(); }) {}
  ~Courier();
  Courier(const Courier&) = delete;

  /// Nothing may be under way.
  void start(std::function<void()> call);
  /// Returns when nothing is under way. Errors: throws what the call threw, once.
  void wait();
  /// What the call threw, if it has ended and nobody has waited for it.
  std::exception_ptr error();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> call_;  // none: nothing under way
  std::exception_ptr error_;
  bool closing_ = false;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace tandem::reshard
