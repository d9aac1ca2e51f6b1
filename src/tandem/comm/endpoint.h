// SPDX-License-Identifier: Apache-2.0
#pragma once
// A ZeroMQ socket with the settings that all of them have here.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tandem::comm {

/// CURVE keys as ZeroMQ writes them, 40 characters each. Whoever knows the public one may connect: it is the run's token. Every endpoint
/// that answers has some, whatever its address: a loopback address is open to all users of the machine.
struct ServerKeys {
  std::string public_key, secret_key;
};
ServerKeys make_keys();

/// Whether no other machine reaches this address.
bool stays_on_this_machine(const std::string& address);

/// "tcp://HOST:PORT" with the number of HOST, if that is a name; others as they are. Errors: UserError if nobody knows the host.
std::string numeric_address(const std::string& address);
/// The address of this machine from which it reaches `address`, as others may know it. Errors: UserError if the host is not known, or there
/// is no way to it.
std::string local_host_towards(const std::string& address);

/// Whether the machine of `address` says that nobody answers there: who did is gone. False if it says nothing within a moment.
bool is_refused(const std::string& address);

/// A message from one of many, or to it.
struct Letter {
  std::string peer;               ///< which connection; "" where there is but one
  std::vector<std::byte> bytes;
  std::string host = {};          ///< from which it came, as the system says it; of those who call
};

/// How many bytes a message may have: who sends more is cut off.
constexpr int64_t kMaxMessageBytes = 256 << 20;
/// A call, or a request of rows: heads of some thousand samples.
constexpr int64_t kMaxRequestBytes = 32 << 20;

/// Ownership  a socket; what is not sent when it goes is lost. All sockets of a process share its context.
/// Threads    one.
/// Blocking   receive alone.
/// Errors     UserError for an address or a token that cannot be; PeerError from the system.
class Endpoint {
 public:
  /// Answers many, at "tcp://HOST:PORT" or "ipc://FILE"; port 0: any that is free.
  static Endpoint at(const std::string& address, const ServerKeys& keys);
  /// Calls one, whose public key is `token`. A message of more than `most_bytes` breaks the connection, for good.
  static Endpoint to(const std::string& address, const std::string& token, int64_t most_bytes = kMaxMessageBytes);
  ~Endpoint();
  Endpoint(Endpoint&&) noexcept;
  Endpoint& operator=(Endpoint&&) noexcept;

  /// With the port that it has.
  const std::string& address() const { return address_; }
  /// Never waits: a letter to someone who does not read is lost. Errors: PeerError, too, for more bytes than may be sent.
  void send(const Letter& letter);
  /// Nothing after `seconds`. A letter of several parts comes empty.
  std::optional<Letter> receive(double seconds);
  // Of one that calls, as of the last receive().
  /// Whether the other side answers, and never let this one in: the token is not its own.
  bool is_turned_away() const;
  /// Times that a connection broke, once it stood.
  int64_t num_breaks() const;

 private:
  struct Socket;
  Endpoint(std::unique_ptr<Socket> socket, std::string address, bool answers_many);
  std::unique_ptr<Socket> socket_;
  std::string address_;
  bool answers_many_ = false;
};

}  // namespace tandem::comm
