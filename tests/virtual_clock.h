// SPDX-License-Identifier: Apache-2.0
#pragma once
// A clock whose hours pass at once: when all threads that take part wait, time moves on to the first moment one waits for.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <list>

#include "tandem/base/clock.h"

namespace tandem {

class VirtualClock : public WaitClock {
 public:
  Clock::time_point now() override {
    std::lock_guard lock(mutex_);
    return now_;
  }

  void wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, Clock::time_point until) override {
    {
      std::unique_lock mine(mutex_);
      const auto waiter = waiters_.emplace(waiters_.end(), &changed, until);
      lock.unlock();
      --running_;
      move_on();
      waiter->wake.wait(mine, [&] { return waiter->awake; });
      waiters_.erase(waiter);
    }
    lock.lock();
  }

  void notify_all(std::condition_variable& changed) override {
    std::lock_guard lock(mutex_);
    for (Waiter& waiter : waiters_)
      if (waiter.changed == &changed) rouse(waiter);
  }

  void threads_start(int count) override {
    std::lock_guard lock(mutex_);
    running_ += count;
  }
  void thread_ends() override {
    std::lock_guard lock(mutex_);
    --running_;
    move_on();
  }

  double seconds() { return std::chrono::duration<double>(now() - Clock::time_point{}).count(); }
  void sleep_s(double seconds) {
    std::mutex mutex;
    std::condition_variable never;
    std::unique_lock lock(mutex);
    for (const Clock::time_point until = now() + duration_of_s(seconds); now() < until;) wait_until(lock, never, until);
  }
  int num_threads() {
    std::lock_guard lock(mutex_);
    return running_ + static_cast<int>(waiters_.size());
  }

 private:
  struct Waiter {
    Waiter(std::condition_variable* changed, Clock::time_point until) : changed(changed), until(until) {}
    std::condition_variable* changed;
    Clock::time_point until;
    bool awake = false;
    std::condition_variable wake;
  };

  void rouse(Waiter& waiter) {
    if (waiter.awake) return;
    waiter.awake = true;
    ++running_;
    waiter.wake.notify_one();
  }

  void move_on() {
    if (running_ > 0 || waiters_.empty()) return;
    const auto earlier = [](const Waiter& a, const Waiter& b) { return a.until < b.until; };
    const Clock::time_point first = std::min_element(waiters_.begin(), waiters_.end(), earlier)->until;
    if (first == Clock::time_point::max()) {
      std::fputs("VirtualClock: all threads wait, none with a deadline\n", stderr);
      std::abort();
    }
    now_ = std::max(now_, first);
    for (Waiter& waiter : waiters_)
      if (waiter.until <= now_) rouse(waiter);
  }

  std::mutex mutex_;
  std::list<Waiter> waiters_;
  int running_ = 0;
  Clock::time_point now_{};
};

}  // namespace tandem
