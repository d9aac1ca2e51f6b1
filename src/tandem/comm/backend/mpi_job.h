// SPDX-License-Identifier: Apache-2.0
#pragma once
// What all groups of one MPI process share: news of a rank that failed, and the messages that are still on their way.

#include <ATen/core/Tensor.h>
#include <mpi.h>

#include <array>
#include <list>
#include <mutex>
#include <string>
#include <vector>

namespace tandem::comm {

/// Errors: PeerError with MPI's text unless `code` is success.
void check_mpi(int code, const char* call);

/// A buffered message: its bytes are kept until the peer has them.
struct SentMessage {
  at::Tensor bytes;
  std::vector<MPI_Request> requests;
  std::string name;  // as errors say it
};

/// Ownership  its own communicator, on which a failing rank tells the others why; sent messages until they are delivered.
/// Threads    any.
/// Blocking   only all_ended and gather.
class MpiJob {
 public:
  explicit MpiJob(double deadline_s);

  /// Tells every rank; the first reason stays. Never throws.
  void abort(const std::string& reason) noexcept;
  /// The reason the job is dead, "" while it lives. Looks for notices of others, and lets go of messages that have arrived.
  std::string death();
  /// Whether the first reason came from another rank. After death().
  bool killed_by_peer() const { return killed_by_peer_; }

  void keep(SentMessage message);
  /// Names of messages that nobody took; only after all_ended.
  std::vector<std::string> undelivered();

  /// Waits until all ranks have ended their body. False if some have not within `seconds` (after a death: within the grace).
  bool all_ended(double seconds);
  /// What every rank brings, by rank; only after all_ended.
  std::vector<int> gather(int mine);
  /// Ends the channel; only after all_ended.
  void close();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const double deadline_s;

 private:
  static constexpr int kNoticeTag = 1;
  void die(const std::string& reason);

  std::mutex mutex_;
  MPI_Comm notices_ = MPI_COMM_NULL;
  MPI_Request notice_ = MPI_REQUEST_NULL;
  std::array<char, 1024> heard_{}, told_{};
  std::list<SentMessage> sent_;
  int rank_ = 0, size_ = 1;
  bool dead_ = false, killed_by_peer_ = false;
  std::string reason_;
};

}  // namespace tandem::comm
