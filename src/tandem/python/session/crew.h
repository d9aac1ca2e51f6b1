// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks that live between calls: threads of this process, each with what it keeps, which wait for work and do it together.

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/config/config.h"
#include "tandem/python/session/on_rank.h"

namespace tandem::session {

/// Ownership  owns the threads and what each rank keeps. The config must outlive it.
/// Threads    one calls.
/// Blocking   the constructor until all ranks are ready, do_all until all are done. Ranks wait for each other by parallel.deadline_s.
class Crew {
 public:
  /// Work of one rank. Where it throws UserError or Interrupted it must throw them on all ranks; the crew then goes on.
  using Work = std::function<void(OnRank& me)>;

  /// `asked_to_stop` is asked now and then while a call waits; ranks hear of it by stop_requested().
  /// Errors: what a rank's making throws; UserError within a job of several processes.
  Crew(const config::RunConfig& config, StopRequested asked_to_stop);
  ~Crew();

  /// Errors: what `work` throws, that of the first rank. After any but UserError and Interrupted the ranks are gone, and later calls
  /// throw PeerError.
  void do_all(const Work& work);
  /// The same for work that leaves nothing whole where it throws: the ranks are gone whatever that is.
  void do_all_or_end(const Work& work);
  /// Of the call under way. Any thread.
  bool stop_requested() const { return stop_; }

 private:
  void do_all(const Work& work, bool goes_on);
  void wait_for_ranks(std::unique_lock<std::mutex>& lock);
  void work_as(comm::Group& world);
  void end();

  const config::RunConfig& config_;
  const StopRequested asked_to_stop_;
  std::atomic<bool> stop_ = false;

  std::mutex mutex_;  // guards what follows, but for the thread
  std::condition_variable changed_;
  const Work* work_ = nullptr;  // null: the ranks shall end
  int64_t number_ = 0;          // of the call; ranks that have seen it are at it
  size_t num_done_ = 0;
  std::vector<std::exception_ptr> faults_;  // by rank, of the call
  bool goes_on_ = true;         // after an error that all ranks throw alike
  bool failed_ = false, ended_ = false;
  std::exception_ptr end_;                  // why the ranks are gone, if they failed
  std::thread launcher_;
};

}  // namespace tandem::session
