// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/courier.h"

#include <utility>

#include "tandem/base/check.h"

namespace tandem::reshard {

Courier::~Courier() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Courier::start(std::function<void()> call) {
  {
    std::lock_guard lock(mutex_);
    TANDEM_CHECK(!call_ && !error_, "a call is under way");
    call_ = std::move(call);
  }
  changed_.notify_all();
}

void Courier::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !call_; });
  if (const std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
}

std::exception_ptr Courier::error() {
  std::lock_guard lock(mutex_);
  return error_;
}

void Courier::work() {
  for (std::unique_lock lock(mutex_);;) {
    changed_.wait(lock, [&] { return call_ || closing_; });
    if (!call_) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      call_();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    call_ = nullptr, error_ = error;
    changed_.notify_all();
  }
}

}  // namespace tandem::reshard
