// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who lives: each rank beats to rank 0 over TCP, outside MPI, and rank 0 tells all others what it hears.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tandem/base/clock.h"
#include "tandem/comm/backend/beat_link.h"
#include "tandem/comm/backend/wake_up.h"

namespace tandem::comm {

/// A process that died shows at once, by its closed connection; one that is stopped or cut off by missing beats, within
/// kSilent_s. Either is logged by every rank that lives. Without rank 0 the others no longer hear of each other.
///
/// Ownership  the links, and a thread that the destructor joins.
/// Threads    any may ask; the hooks run in its own thread and must not wait.
/// Blocking   all_done alone.
/// Errors     none.
class Heartbeat {
 public:
  static constexpr double kBeat_s = 0.2, kSilent_s = 1.2;
  struct Hooks {
    std::function<void(int rank)> died;
    std::function<bool()> is_stuck;  // whether this rank has waited in one operation for a while
    std::function<void(Heartbeat& self)> each_beat;  // the first may come before its owner has it
  };

  /// links: by rank; rank 0 has one to each, the others have theirs to rank 0. A rank without one is not watched.
  Heartbeat(int rank, std::vector<Link> links, Hooks hooks);
  /// Says that this rank ends as it should.
  ~Heartbeat();

  /// Ranks that are gone or silent.
  std::vector<int> lost();
  /// Ranks that are not lost and have waited in one operation for a while: they are not to blame for what is late.
  std::vector<int> stuck();
  /// Tells the others that this rank has said its last word.
  void say_done();
  /// Waits until all that are not lost have said so. False if they have not within `seconds`, or rank 0 is lost.
  bool all_done(double seconds);

 private:
  struct Peer {
    Link link;
    Clock::time_point heard = Clock::now();
    bool is_watched = false, is_gone = false, is_silent = false, is_stuck = false, is_done = false;
    bool is_lost() const { return is_gone || is_silent; }
  };
  template <class Test>
  std::vector<int> ranks_that(Test test);
  void loop();
  void wait_for_news();
  void read(int rank);
  void learn(const Fact& fact);
  void tell(const Fact& fact);
  void beat();
  void find_silent();
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }

  const int rank_;
  const Hooks hooks_;
  const WakeUp wake_up_;  // the thread has something to tell
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;  // links are the thread's alone
  std::vector<int> died_;    // of which the hook has not been told
  bool ends_ = false, says_done_ = false;
  Clock::time_point next_beat_{}, last_round_ = Clock::now();
  std::thread thread_;
};

}  // namespace tandem::comm
