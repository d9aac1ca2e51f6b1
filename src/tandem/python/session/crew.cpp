// SPDX-License-Identifier: Apache-2.0
#include "tandem/python/session/crew.h"

#include <chrono>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/comm/launch.h"
#include "tandem/runtime/launch.h"

namespace tandem::session {
namespace {

// Whether all ranks throw it alike, so that they still stand at the same place.
bool is_alike(const std::exception& e) { return dynamic_cast<const UserError*>(&e) || dynamic_cast<const Interrupted*>(&e); }

}  // namespace

Crew::Crew(const config::RunConfig& config, StopRequested asked_to_stop)
    : config_(config), asked_to_stop_(std::move(asked_to_stop)), faults_(static_cast<size_t>(config.parallel.ranks)) {
  if (comm::mpi_launched())
    throw UserError("parallel.ranks", "processes of a job cannot share a session", "parallel.ranks: its ranks are threads");
  std::unique_lock lock(mutex_);
  launcher_ = std::thread([this] {
    std::exception_ptr fault;
    try {
      runtime::launch_ranks(config_, runtime::Host::kLibrary, [this](comm::Group& world) { work_as(world); });
    } catch (...) {
      fault = std::current_exception();
    }
    const std::lock_guard locked(mutex_);
    ended_ = true, end_ = fault;
    changed_.notify_all();
  });
  changed_.wait(lock, [&] { return ended_ || num_done_ == faults_.size(); });
  if (!ended_) return;
  lock.unlock();
  launcher_.join();
  std::rethrow_exception(end_);
}

Crew::~Crew() { end(); }

void Crew::end() {
  locked(mutex_, [&] { work_ = nullptr, ++number_; });
  changed_.notify_all();
  if (launcher_.joinable()) launcher_.join();
}

// A rank's life. It is ready once it has made what it keeps.
void Crew::work_as(comm::Group& world) {
  OnRank me(config_, world);
  world.barrier();
  const auto rank = static_cast<size_t>(world.rank());
  std::unique_lock lock(mutex_);
  for (int64_t seen = 0;;) {
    ++num_done_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return number_ > seen || failed_; });
    seen = number_;
    if (!work_ || failed_) return;
    lock.unlock();
    std::exception_ptr fault;
    try {
      (*work_)(me);
    } catch (const std::exception& e) {
      if (!goes_on_ || !is_alike(e)) {  // those that are done wait for no more work
        lock.lock();
        failed_ = true;
        changed_.notify_all();
        throw;
      }
      fault = std::current_exception();
    }
    lock.lock();
    faults_[rank] = fault;
  }
}

void Crew::wait_for_ranks(std::unique_lock<std::mutex>& lock) {
  constexpr std::chrono::milliseconds kMoment{50};
  const auto is_over = [&] { return ended_ || num_done_ == faults_.size(); };
  while (!changed_.wait_for(lock, kMoment, is_over)) {
    lock.unlock();
    if (asked_to_stop_ && asked_to_stop_()) stop_ = true;
    lock.lock();
  }
}

void Crew::do_all(const Work& work) { do_all(work, true); }
void Crew::do_all_or_end(const Work& work) { do_all(work, false); }

void Crew::do_all(const Work& work, bool goes_on) {
  std::unique_lock lock(mutex_);
  if (ended_) throw PeerError(join_text("the ranks are gone since an earlier call failed: ", end_ ? what_of(end_) : ""));
  stop_ = false;
  work_ = &work, goes_on_ = goes_on, ++number_;
  num_done_ = 0;
  changed_.notify_all();
  wait_for_ranks(lock);
  work_ = nullptr;
  if (ended_) std::rethrow_exception(end_);
  for (const std::exception_ptr& fault : faults_)
    if (fault) std::rethrow_exception(fault);
}

}  // namespace tandem::session
