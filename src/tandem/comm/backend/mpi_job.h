// SPDX-License-Identifier: Apache-2.0
#pragma once
// What all groups of one MPI process share: news of a rank that failed, and the messages that are still on their way.

#include <ATen/core/Tensor.h>
#include <mpi.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tandem/comm/backend/message_bytes.h"
#include "tandem/base/clock.h"
#include "tandem/comm/backend/heartbeat.h"
#include "tandem/comm/backend/machines.h"

namespace tandem::comm {

/// Errors: PeerError with MPI's text unless `code` is success.
void check_mpi(int code, const char* call);

/// A buffered message: its bytes are kept until the peer has them.
struct SentMessage {
  MessageBytes bytes;
  std::vector<MPI_Request> requests;
  std::string name;  // as errors say it
};

/// Ranks are those of the world, in which the ranks of one machine are neighbours; MPI_COMM_WORLD may number them otherwise.
///
/// Ownership  its own communicator, on which a failing rank tells the others why; the heartbeat; sent messages until they are
///            delivered, and a thread that moves them: MPI alone moves large ones only while some thread calls it, and the
///            peer would wait for the end of this rank's computation.
/// Threads    any.
/// Blocking   the constructor, which is collective, and all_ended, gather and all_reported.
/// Errors     UserError from the constructor of rank 0 if TANDEM_INTERFACE names nothing there. A rank that does not end within seconds of
///            a death, its own thread stuck in MPI, ends the job by MPI_Abort.
class MpiJob {
 public:
  explicit MpiJob(double deadline_s);
  ~MpiJob();
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;

  /// Tells every rank; the first reason stays. Never throws.
  void abort(const std::string& reason) noexcept;
  /// The reason the job is dead, "" while it lives. Looks for notices of others, and lets go of messages that have arrived.
  std::string death();
  /// Whether the first reason came from another rank. After death().
  bool killed_by_peer();

  void keep(SentMessage message);
  /// Names of messages that nobody took; only after all_ended.
  std::vector<std::string> undelivered();

  /// `no sign of rank 2 within 60 s`: of ranks that an operation waits for in vain, those to blame.
  std::string blame(const std::vector<int>& missing);
  /// How many threads of this rank have waited in one operation for a while. One that gave up stays among them.
  void count_stuck(int change) { num_stuck_ += change; }

  /// Stands around an MPI call that waits for others with no deadline of its own.
  class Blocking {
   public:
    Blocking(MpiJob& job, std::string place);
    ~Blocking();
    Blocking(const Blocking&) = delete;
    Blocking& operator=(const Blocking&) = delete;

   private:
    MpiJob& job_;
    std::list<std::pair<Clock::time_point, std::string>>::iterator entry_;
  };

  /// Waits until all ranks have ended their body. False if some have not within `seconds` (after a death: within the grace),
  /// or never will.
  bool all_ended(double seconds);
  /// What every rank brings, by rank; only after all_ended.
  std::vector<int> gather(int mine);
  /// Where not all have ended: waits, for seconds at most, until those that live have reported their error, as this rank has.
  void all_reported();
  /// Whether this is the lowest rank that lives.
  bool is_first_alive();
  /// Ends the channel; only after all_ended.
  void close();

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// All ranks of the job in their order; for MPI_Comm_dup alone.
  MPI_Comm ranks() const { return notices_; }
  const WorldOrder& order() const { return order_; }
  const double deadline_s;

 private:
  static constexpr int kNoticeTag = 1;
  void order_ranks();
  void log_machines();
  void start_heartbeat();
  void die(const std::string& reason, bool by_peer);
  void hear();
  void watch_over_blocking(Heartbeat& heartbeat);
  void move_messages();
  void stop_moving();

  std::mutex mutex_;
  std::condition_variable changed_;
  WorldOrder order_;
  MPI_Comm notices_ = MPI_COMM_NULL;
  MPI_Request notice_ = MPI_REQUEST_NULL;
  std::array<char, 1024> heard_{}, told_{};
  std::list<SentMessage> sent_;
  std::list<std::pair<Clock::time_point, std::string>> blocking_;  // until when, and where
  std::atomic<int> num_stuck_{0};
  int rank_ = 0, size_ = 1;
  bool dead_ = false, killed_by_peer_ = false, ends_ = false, has_reported_ = false;
  Clock::time_point died_at_{};
  std::string reason_;
  std::thread mover_;
  std::unique_ptr<Heartbeat> heartbeat_;  // last: its thread uses the rest; null for one rank, or where no port could be opened
};

}  // namespace tandem::comm
