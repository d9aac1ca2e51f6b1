// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/clock.h"

namespace tandem {
namespace {

class RealClock : public WaitClock {
 public:
  Clock::time_point now() override { return Clock::now(); }
  void wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, Clock::time_point until) override {
    if (until == Clock::time_point::max()) changed.wait(lock);  // as a moment it would overflow
    else changed.wait_until(lock, until);
  }
  void notify_all(std::condition_variable& changed) override { changed.notify_all(); }
  void threads_start(int) override {}
  void thread_ends() override {}
};

}  // namespace

WaitClock& real_clock() {
  static RealClock clock;
  return clock;
}

}  // namespace tandem
