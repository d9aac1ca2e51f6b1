// SPDX-License-Identifier: Apache-2.0
#pragma once
// What all groups of a process that is a rank share: news of a rank that failed, who lives, and how the job ends.

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tandem/base/clock.h"
#include "tandem/comm/backend/heartbeat.h"
#include "tandem/comm/backend/process/transport.h"
#include "tandem/comm/launch.h"

namespace tandem::comm {

/// Ranks are those of the world.
///
/// Ownership  the heartbeat, and a channel of its own. The transport outlives it.
/// Threads    any.
/// Blocking   the constructor, which is collective, and all_ended, gather and all_reported.
/// Errors     a rank that does not end within seconds of a death, its own thread stuck, ends its process by Transport::end_process.
class ProcessJob {
 public:
  ProcessJob(Transport& transport, double deadline_s);

  /// Tells every rank; the first reason stays. Never throws.
  void abort(const std::string& reason) noexcept;
  /// The reason the job is dead, "" while it lives. Looks for what others have told.
  std::string death();
  /// Whether the first reason came from another rank. After death().
  bool killed_by_peer();

  /// Names of messages that nobody took; only after all_ended.
  std::vector<std::string> untaken();

  /// `no sign of rank 2 within 60 s`: of ranks that an operation waits for in vain, those to blame.
  std::string blame(const std::vector<int>& missing);
  /// How many threads of this rank have waited in one operation for a while. One that gave up stays among them.
  void count_stuck(int change) { num_stuck_ += change; }

  /// Stands around a call of the transport that waits for others with no deadline of its own.
  class Blocking {
   public:
    Blocking(ProcessJob& job, std::string place);
    ~Blocking();
    Blocking(const Blocking&) = delete;
    Blocking& operator=(const Blocking&) = delete;

   private:
    ProcessJob& job_;
    std::list<std::pair<Clock::time_point, std::string>>::iterator entry_;
  };

  /// Waits until all ranks have ended their body. False if some have not within `seconds` (after a death: within the grace),
  /// or never will.
  bool all_ended(double seconds);
  /// What every rank brings, by rank; only after all_ended. Errors: PeerError if a rank does not bring it in time.
  std::vector<int> gather(int mine);
  /// Where not all have ended: waits, for seconds at most, until those that live have reported their error, as this rank has.
  void all_reported();
  /// Whether this is the lowest rank that lives.
  bool is_first_alive();

  int rank() const { return transport_.rank(); }
  int size() const { return transport_.size(); }
  Transport& transport() { return transport_; }
  const double deadline_s;

 private:
  void die(const std::string& reason, bool by_peer);
  void hear();
  void watch_over_blocking(Heartbeat& heartbeat);
  bool any_lost();

  Transport& transport_;
  std::mutex mutex_;
  const std::unique_ptr<Channel> ends_;  // what ranks say when their body has ended
  std::list<std::pair<Clock::time_point, std::string>> blocking_;  // until when, and where
  std::atomic<int> num_stuck_{0};
  bool dead_ = false, killed_by_peer_ = false, has_reported_ = false;
  Clock::time_point died_at_{};
  std::string reason_;
  std::unique_ptr<Heartbeat> heartbeat_;  // last: its thread uses the rest; null for one rank, or where there are no connections
};

/// Runs `body` as the rank that the transport makes of this process. Errors: as run_mpi says.
void run_as_rank(Transport& transport, double deadline_s, const RankBody& body);

}  // namespace tandem::comm
