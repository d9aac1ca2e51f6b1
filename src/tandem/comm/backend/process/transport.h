// SPDX-License-Identifier: Apache-2.0
#pragma once
// The seam beneath ranks that are processes: messages between two of them, each with a tag, as MPI or sockets move them.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tandem/comm/backend/beat_link.h"
#include "tandem/comm/backend/message_bytes.h"

namespace tandem::comm {

// Collectives number themselves below the first tag of messages.
inline constexpr int kFirstMessageTag = 1 << 15;

/// The messages of one operation, which are under way. Peers are ranks of the channel.
///
/// Ownership  memory stays the caller's, and lives until all are done or cancel() has returned.
/// Threads    one.
/// Blocking   pause() alone, for moments.
class Requests {
 public:
  enum class State { kUnderWay, kDone, kMisfit };
  virtual ~Requests() = default;

  /// Messages between two ranks with one tag arrive in the order in which they were sent.
  virtual void send(int peer, int tag, const void* from, int64_t bytes) = 0;
  virtual void receive(int peer, int tag, void* to, int64_t bytes) = 0;
  /// kMisfit: a message has other bytes than its receiver expects.
  virtual State test() = 0;
  /// Between two tests, of which this is the `round`-th. False if no time worth mentioning went by.
  virtual bool pause(int64_t round) = 0;
  /// The peers of those that are not done; one may be there twice.
  virtual std::vector<int> unfinished() = 0;
  /// Nothing is written or read any more.
  virtual void cancel() noexcept = 0;
};

/// The messages of one group.
///
/// Threads    one at a time, but any.
/// Errors     PeerError of what the library says.
class Channel {
 public:
  virtual ~Channel() = default;

  virtual std::unique_ptr<Requests> begin() = 0;
  /// Buffered: returns at once, and the transport keeps the bytes until they are delivered. `name` is for Transport::untaken.
  virtual void send(int peer, int tag, MessageBytes bytes, const std::string& name) = 0;
  /// Whether a receive would find a message.
  virtual bool arrived(int peer, int tag) = 0;
  /// A channel of these ranks of this one, all of which have passed that colour. May wait for them.
  virtual std::unique_ptr<Channel> split(const std::vector<int>& members, int color, const std::string& name) = 0;
  /// The job is dead: others may have messages under way here.
  virtual void abandon() noexcept = 0;
};

/// What a process is a rank by. Outlives its channels.
///
/// Threads    any, where not said otherwise.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// By rank of the world: the number of its machine.
  virtual const std::vector<int>& machines() const = 0;
  /// A new channel of all ranks. Collective.
  virtual std::unique_ptr<Channel> world() = 0;
  /// Connections for the heartbeat, by rank: rank 0 has one to each, the others have theirs to rank 0. Empty where there are none.
  /// Collective; once.
  virtual std::vector<Link> take_links() = 0;

  /// Tells all others why this rank ends the job. Returns at once.
  virtual void tell(const std::string& reason) noexcept = 0;
  /// The reason that another rank told, "" while none has.
  virtual std::string heard() = 0;
  /// Names of buffered messages that nobody took, of those that this rank knows of. After all ranks have ended.
  virtual std::vector<std::string> untaken() = 0;

  /// All ranks have ended, and nothing is under way.
  virtual void close() = 0;
  /// Not all have ended, and this is the first rank that lives: ends the others, if they do not end by themselves.
  virtual void end_others() noexcept = 0;
  /// Ends this process with exit code 3, whatever its other threads do.
  [[noreturn]] virtual void end_process() noexcept = 0;
};

}  // namespace tandem::comm
