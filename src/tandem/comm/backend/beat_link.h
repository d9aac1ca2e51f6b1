// SPDX-License-Identifier: Apache-2.0
#pragma once
// TCP connections that carry the heartbeat: a few bytes each way, never waited for once they stand.

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/base/file/descriptor.h"
#include "tandem/comm/network.h"

namespace tandem::comm {

enum class News : uint8_t {
  kBeat,    // the sender lives
  kStuck,   // has waited in one operation for a while
  kMoving,  // no longer
  kSilent,  // sends no beats
  kHeard,   // sends them again
  kGone,    // its connection closed without a word
  kDone,    // has reported its error and only waits for the others
  kBye,     // ends as it should
};

/// What one rank says of a rank.
struct Fact {
  News news = News::kBeat;
  int32_t rank = 0;
};

/// Ownership  the socket.
/// Threads    one.
/// Blocking   never.
/// Errors     none: a connection that breaks is closed.
class Link {
 public:
  Link() = default;
  explicit Link(int socket);

  bool is_open() const { return socket_.is_open(); }
  int socket() const { return socket_.number(); }
  void send(const Fact& fact);
  /// What has arrived since the last call; may find the connection closed.
  std::vector<Fact> receive();
  void close() { socket_.close(); }

 private:
  void flush();
  Descriptor socket_;
  std::string in_, out_;
};

/// Where the ranks of a job connect to.
///
/// Errors  PeerError if no port can be opened.
class Listener {
 public:
  /// Others are told the addresses `offered`; where there is one, nothing else is listened on.
  explicit Listener(const std::vector<Address>& offered = own_addresses());

  /// `TOKEN PORT IP IP ...`: the token keeps strangers out; one of the addresses may be reached from another machine.
  const std::string& invitation() const { return invitation_; }
  /// Links by rank, as many as come within `seconds`; that of rank 0, the caller, is closed.
  std::vector<Link> accept_all(int ranks, double seconds) const;

 private:
  Descriptor socket_;
  uint64_t token_ = 0;
  std::string invitation_;
};

/// A closed link if the listener cannot be reached within `seconds`.
Link accept_invitation(const std::string& invitation, int rank, double seconds);

}  // namespace tandem::comm
