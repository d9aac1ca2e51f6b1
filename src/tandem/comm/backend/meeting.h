// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the threads of a `local` group share: where they meet, leave messages, and find out whom they wait for.

#include <ATen/core/Tensor.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tandem/comm/backend/message_bytes.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"

namespace tandem::comm {

class Meeting;

/// What one rank brings to an operation. Written before a meeting, read by the peers after it.
struct Post {
  const char* op = "";
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;                 // must agree between ranks, as do dtype and argument
  at::ScalarType dtype = at::kByte;
  int argument = 0;                  // root or ReduceOp
  std::vector<int64_t> send_bytes, receive_bytes;  // all_to_all_v; copies, since peers read them even while this rank unwinds
  int color = 0;                     // split
};

/// What the groups of one world share: its deadline and clock, and what each rank waits for just now, in each of its threads.
struct World {
  struct Wait {
    Meeting* meeting = nullptr;
    const char* op = "";
    int peer = -1;               // in the meeting; -1: all
    uint64_t round = 0;
  };
  struct RankWaits {
    std::list<Wait> now;
    std::string given_up;        // why the last wait of a thread failed; "" if it did not
    std::thread::id of_thread;
  };
  World(int ranks, double deadline_s, WaitClock& clock) : deadline_s(deadline_s), clock(clock), waits(static_cast<size_t>(ranks)) {}

  const double deadline_s;
  WaitClock& clock;
  std::mutex mutex;  // of `waits`; may be held while a meeting's is taken, never the other way round
  std::vector<RankWaits> waits;
};

/// Shared ownership: each rank's Group holds it, and a parent watches its children.
class Meeting {
 public:
  Meeting(std::shared_ptr<World> world, std::string name, std::vector<int> world_ranks);

  int size() const { return static_cast<int>(posts.size()); }
  const std::string& name() const { return name_; }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  const std::shared_ptr<World>& world() const { return world_; }

  /// Returns once every rank has called it. Errors: PeerError after abort, or naming the ranks that are late.
  void meet(int rank, const char* op);
  /// The meeting that ends an operation: no rank may leave, even by an exception, while a peer reads its memory. Each peer comes here
  /// by a Parting, whatever fails, and waits for nobody before; so this wait is short and needs no deadline.
  void part(int rank) noexcept;
  /// Errors: as meet after abort.
  void check_alive(int rank, const char* op);

  /// Leaves a message for a rank. Errors: PeerError after abort.
  void leave(int from, int to, int tag, MessageBytes bytes);
  /// Waits for the next message of that tag. Errors: as meet.
  MessageBytes take(int rank, int from, int tag);
  /// Whether take() would find one. Errors: PeerError after abort.
  bool has(int rank, int from, int tag);

  void abort(const std::string& reason);
  /// Why it is dead, "" while it lives.
  std::string death();
  void adopt(const std::shared_ptr<Meeting>& child);
  /// `rank 3: all_reduce in group 'tp'`, how an error of this rank begins.
  std::string place(int rank, const char* op) const;

  std::vector<Post> posts;                                // one writer each; meetings order writes and reads
  std::map<int, std::shared_ptr<Meeting>> split_result;   // by colour; written by rank 0 between two meetings

 private:
  using Mail = std::map<std::pair<int, int>, std::deque<MessageBytes>>;  // by sender and tag

  bool met(uint64_t round) const { return round_.load(std::memory_order_acquire) != round; }
  /// True if the meeting took place. Takes the lock away.
  bool arrive(int rank, uint64_t round, std::unique_lock<std::mutex>& lock);
  template <class Ready>
  void wait(int rank, const World::Wait& wait, std::condition_variable& changed, Ready ready);
  void throw_if_dead(int rank, const char* op) const;
  /// Tells all who wait, and the children. Takes the lock away.
  void end(std::unique_lock<std::mutex>& lock, const std::string& reason);
  /// World ranks that have not come to what `wait` waits for; empty if it is over.
  std::vector<int> missing(const World::Wait& wait);
  /// Why this rank has waited in vain.
  std::string explanation(int rank);

  const std::shared_ptr<World> world_;
  const std::string name_;
  const std::vector<int> world_ranks_;
  int num_spins_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> arrived_;
  int num_arrived_ = 0;
  std::atomic<uint64_t> round_{0};
  std::vector<Mail> mail_;                        // by receiver
  std::deque<std::condition_variable> has_mail_;  // by receiver
  bool dead_ = false;
  std::string reason_;
  std::vector<std::weak_ptr<Meeting>> children_;
};

/// Parts once: at `now`, or when it is destroyed.
class Parting {
 public:
  Parting(Meeting& meeting, int rank) : meeting_(&meeting), rank_(rank) {}
  ~Parting() { now(); }
  Parting(const Parting&) = delete;
  Parting& operator=(const Parting&) = delete;
  void now() {
    if (Meeting* meeting = std::exchange(meeting_, nullptr)) meeting->part(rank_);
  }

 private:
  Meeting* meeting_;
  const int rank_;
};

}  // namespace tandem::comm
