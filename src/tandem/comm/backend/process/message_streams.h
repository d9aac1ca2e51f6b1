// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages with tags between processes of one machine, over a stream socket to each.

#include <compare>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tandem/comm/backend/message_bytes.h"
#include "tandem/comm/backend/wake_up.h"

namespace tandem::comm {

/// A small message is sent at once, and kept where it arrives before it is asked for. Of a large one, its sender offers the bytes first,
/// and sends them when the receiver has asked for them and takes them in place: so what is kept for messages that nobody asks for stays
/// small.
///
/// Ownership  the sockets, buffered messages, messages that have arrived, and a thread that reads and writes. Memory of an operation is the
///            caller's until all its messages are done, or cancel() has returned.
/// Threads    any; one for each operation.
/// Blocking   wait() alone.
/// Errors     none: a peer whose socket closes says nothing any more, and takes nothing. The heartbeat tells of it.
class MessageStreams {
 public:
  /// Where a message belongs; those of one lane arrive in order. Peers are ranks of the world.
  struct Lane {
    uint64_t channel;
    int peer, tag;
    auto operator<=>(const Lane&) const = default;
  };
  struct Operation;
  /// A message at one of its ends.
  struct Transfer {
    const Lane lane;
    const std::byte* from = nullptr;  // of a message that is sent
    std::byte* to = nullptr;          // of one that is received
    int64_t bytes = 0;
    Operation* operation = nullptr;   // null: a buffered message, or given up
    MessageBytes kept = {};           // of a buffered message
    std::string name = {};            // likewise
    bool is_done = false, is_misfit = false;
  };
  /// What the messages of one call share. Goes by cancel(), or once all are done.
  struct Operation {
    std::vector<std::shared_ptr<Transfer>> transfers;
    int num_left = 0;
    bool is_misfit = false;
    std::condition_variable changed;
  };

  /// sockets: by rank, -1 for this one.
  MessageStreams(int rank, std::vector<int> sockets);
  /// What is not sent yet is not sent.
  ~MessageStreams();

  void send(Operation& operation, const Lane& lane, const void* from, int64_t bytes);
  void receive(Operation& operation, const Lane& lane, void* to, int64_t bytes);
  void send_buffered(const Lane& lane, MessageBytes bytes, std::string name);
  bool arrived(const Lane& lane);

  /// Waits until the operation is done, or is a misfit, at most so long.
  void wait(Operation& operation, double seconds);
  /// How many messages are left; -1 if one has other bytes than its receiver expects.
  int num_left(Operation& operation);
  /// The peers of messages that are left, a misfit among them.
  std::vector<int> peers_left(Operation& operation);
  void cancel(Operation& operation) noexcept;

  /// Tells all peers; a text of theirs comes out of notice(), the first.
  void tell(const std::string& text);
  std::string notice();

  /// Names of buffered messages that were offered and not asked for.
  std::vector<std::string> unaccepted();
  /// Lanes of small messages that have arrived and that nobody asked for.
  std::vector<Lane> unasked();

 private:
  enum class Kind : uint32_t { kSmall, kOffer, kAccept, kData, kNotice };
  struct Header {
    Kind kind = Kind::kSmall;
    int32_t tag = 0;
    uint64_t channel = 0;
    int64_t bytes = 0;
    uint64_t id = 0;  // the sender's, of an offer
  };
  struct Outgoing {
    Header header;
    std::shared_ptr<Transfer> transfer;  // whose bytes follow; null: none do
    int64_t num_written = 0;
  };
  struct Arrived {
    std::unique_ptr<std::byte[]> data;  // null: an offer
    int64_t bytes = 0;
    uint64_t offer = 0;
  };
  struct Queue {
    std::deque<std::shared_ptr<Transfer>> asked;
    std::deque<Arrived> arrived;
  };
  struct Peer {
    int rank = 0, socket = -1;
    std::deque<Outgoing> out;
    bool is_full = false;
    // What is being read: the header, then the bytes.
    Header header;
    size_t header_bytes = 0;
    int64_t left = 0;
    std::byte* to = nullptr;  // null: nobody wants them
    std::shared_ptr<Transfer> receiving;
    std::unique_ptr<std::byte[]> buffer;
  };

  void loop();
  void read(Peer& p);
  void begin_frame(Peer& p);
  void end_frame(Peer& p);
  void flush(Peer& p);
  void close(Peer& p);
  void enqueue(int peer, const Header& header, std::shared_ptr<Transfer> transfer);
  void start(std::shared_ptr<Transfer> transfer);
  void deliver(const Lane& lane, Arrived arrived);
  void match(Arrived arrived, const std::shared_ptr<Transfer>& transfer);
  std::shared_ptr<Transfer> take_asked(const Lane& lane);
  void forget(Transfer& transfer);
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }

  const int rank_;
  const WakeUp wake_up_;  // the thread has something to look at
  std::mutex mutex_;
  std::vector<Peer> peers_;
  std::map<Lane, Queue> queues_;
  std::map<uint64_t, std::shared_ptr<Transfer>> offered_;                    // by id, those that wait for their receiver
  std::map<std::pair<int, uint64_t>, std::shared_ptr<Transfer>> accepted_;   // by peer and its id, those whose bytes are on their way
  uint64_t last_id_ = 0;
  std::string notice_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace tandem::comm
