// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is queued on a fake device. Nothing runs before somebody waits, so that whoever reads too early sees what was not computed.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tandem::device::fake {

class Queue;

/// Memory that graphs share: a capture takes from it, and what it gives back its next tensor takes again, and the captures after it. It
/// goes back to the device with the last graph.
///
/// Threads    any.
class Room {
 public:
  explicit Room(Queue& queue) : queue_(queue) {}
  ~Room();
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  /// Null: the device has no more.
  void* take(size_t bytes);
  void give(void* memory);

 private:
  using Ranges = std::map<std::byte*, size_t>;
  Queue& queue_;
  std::mutex mutex_;
  Ranges whole_, free_, taken_;  // as the system gave them; parts of those
};

/// What was queued during a capture, and the memory of others that it freed meanwhile: that stays, as its own.
struct Kept {
  std::vector<std::function<void()>> work;
  std::vector<void*> memory;
  ~Kept();
  void run() const;
};

/// Threads    any.
class Queue {
 public:
  /// `what` names it in errors.
  void push(const char* what, std::function<void()> work);
  /// Runs all that was pushed, in its order, on the calling thread. Errors: libtorch's of devices, of the first that threw, and ever after.
  void drain() { drain_until(std::numeric_limits<int64_t>::max()); }
  /// The same of the first `end` that were ever pushed.
  void drain_until(int64_t end);
  int64_t num_pushed();
  /// With as many compute threads as the calling thread has. Bits of sums depend on it.
  void compute_as_here();
  /// Memory that was made: a result of the capture, if the calling thread has one.
  void made(void* memory, size_t bytes);
  /// Overwrites the results of all captures of the room but one's.
  void poison_others(const Kept& but, const Room& room);
  /// Frees memory, when what was pushed before has run: it is poisoned then, and given back to the system late. A room has its own at once.
  void free(void* memory, size_t bytes, Room* room);

  /// It is lost when so many pieces of work were pushed, and has so many bytes; 0: never, and as many as there are.
  void bound(int64_t most_pieces, int64_t most_bytes);
  /// Counts memory; false: there is not as much left.
  bool take_bytes(int64_t bytes);
  void give_bytes(int64_t bytes) { taken_bytes_ -= bytes; }
  /// Of tensors, arenas and rooms.
  int64_t taken_bytes() const { return taken_bytes_; }

  /// From here on what the calling thread pushes is kept, not run; for it to wait is an error. Its tensors are of `room`.
  void begin_capture(std::shared_ptr<Room> room);
  std::shared_ptr<const Kept> end_capture();
  /// Of the calling thread's capture; null without.
  std::shared_ptr<Room> room();
  bool is_capturing() { return room() != nullptr; }
  /// Captures that began.
  int64_t num_captures() const { return num_captures_; }

  ~Queue();

 private:
  struct Entry {
    const char* what;
    std::function<void()> work;
  };
  bool captures_here() const { return capture_ && capturer_ == std::this_thread::get_id(); }
  void run(const Entry& entry);
  void fail(const std::string& what);
  void retire(void* memory, size_t bytes);

  std::mutex mutex_;
  std::condition_variable is_free_;   // nobody captures
  std::condition_variable progress_;  // a piece of work has run
  std::deque<Entry> entries_;
  std::shared_ptr<Kept> capture_;  // while one goes on, of capturer_; one at a time
  struct Result {
    const Kept* of;
    const Room* room;
    size_t bytes;
  };
  std::map<void*, Result> results_;  // what captures made and somebody still has
  std::thread::id capturer_;
  std::shared_ptr<Room> room_;     // of the capture
  std::string fault_;
  int threads_ = 0;
  std::deque<std::pair<void*, size_t>> retired_;
  size_t retired_bytes_ = 0;
  int64_t num_pieces_ = 0, most_pieces_ = 0;
  int64_t num_pushed_ = 0, num_done_ = 0;  // but for what was captured
  bool is_running_ = false;           // a piece of work, on the thread of whoever waits
  std::atomic<int64_t> taken_bytes_ = 0, most_bytes_ = 0, num_captures_ = 0;
};

inline constexpr int kMostDevices = 16;
/// Of one device, for the life of the process.
Queue& queue_of(int index);

}  // namespace tandem::device::fake
