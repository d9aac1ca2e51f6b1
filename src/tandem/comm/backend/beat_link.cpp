// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/backend/beat_link.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <sstream>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"

namespace tandem::comm {
namespace {

constexpr size_t kFact_bytes = 5;
constexpr double kHandshake_s = 1;

/// What a rank says first; the listener answers with the token.
struct Hello {
  uint64_t token = 0;
  int64_t rank = 0;
};

/// Moves exactly `bytes` before the time is over. The socket is non-blocking.
template <class Move>
bool move_all(int socket, size_t bytes, short event, Move move) {
  const Deadline deadline = Deadline::after_s(kHandshake_s);
  for (size_t done = 0; done < bytes;) {
    pollfd ready{socket, event, 0};
    if (deadline.passed()) return false;
    if (poll(&ready, 1, 50) <= 0) continue;
    const ssize_t moved = move(done);
    if (moved > 0) done += static_cast<size_t>(moved);
    else if (moved == 0 || (errno != EAGAIN && errno != EINTR)) return false;
  }
  return true;
}
template <class T>
bool send_value(int socket, const T& value) {
  const auto* bytes = reinterpret_cast<const char*>(&value);
  return move_all(socket, sizeof value, POLLOUT, [&](size_t at) { return ::send(socket, bytes + at, sizeof value - at, MSG_NOSIGNAL); });
}
template <class T>
bool receive_value(int socket, T& value) {
  auto* bytes = reinterpret_cast<char*>(&value);
  return move_all(socket, sizeof value, POLLIN, [&](size_t at) { return ::recv(socket, bytes + at, sizeof value - at, 0); });
}

// Close-on-exec: a worker process that outlives its rank must not keep the connection open.
int new_socket() { return ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

void send_at_once(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// None unless that address answers with the token.
Descriptor try_address(const std::string& address, uint16_t port, const Hello& hello) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  if (inet_pton(AF_INET, address.c_str(), &to.sin_addr) != 1) return {};
  Descriptor socket(new_socket());
  if (!socket.is_open()) return {};
  const bool begun = ::connect(socket.number(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 || errno == EINPROGRESS;
  uint64_t answer = 0;
  if (begun && send_value(socket.number(), hello) && receive_value(socket.number(), answer) && answer == hello.token) return socket;
  return {};
}

}  // namespace

Link::Link(int socket) : socket_(socket) { send_at_once(socket); }

void Link::send(const Fact& fact) {
  if (!is_open()) return;
  // A stopped peer takes nothing: beats need not pile up for it.
  if (fact.news != News::kBeat || out_.empty()) {
    std::array<char, kFact_bytes> bytes{static_cast<char>(fact.news)};
    std::memcpy(bytes.data() + 1, &fact.rank, sizeof fact.rank);
    out_.append(bytes.data(), bytes.size());
  }
  flush();
}

void Link::flush() {
  const ssize_t sent = ::send(socket(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) out_.erase(0, static_cast<size_t>(sent));
  // What broke the connection shows when it is read.
}

std::vector<Fact> Link::receive() {
  std::array<char, 4096> bytes;
  while (is_open()) {
    const ssize_t got = ::recv(socket(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) in_.append(bytes.data(), static_cast<size_t>(got));
    else if (got == 0 || (errno != EAGAIN && errno != EINTR)) close();
    else break;
  }
  std::vector<Fact> facts(in_.size() / kFact_bytes);
  for (size_t i = 0; i < facts.size(); ++i) {
    facts[i].news = static_cast<News>(in_[i * kFact_bytes]);
    std::memcpy(&facts[i].rank, in_.data() + i * kFact_bytes + 1, sizeof facts[i].rank);
  }
  in_.erase(0, facts.size() * kFact_bytes);
  return facts;
}

Listener::Listener(const std::vector<Address>& offered) : socket_(new_socket()) {
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  if (offered.size() == 1) inet_pton(AF_INET, offered[0].text.c_str(), &any.sin_addr);
  socklen_t size = sizeof any;
  const int socket = socket_.number();
  if (socket < 0 || bind(socket, reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 || listen(socket, SOMAXCONN) != 0 ||
      getsockname(socket, reinterpret_cast<sockaddr*>(&any), &size) != 0)
    throw PeerError(join_text("rank 0: heartbeat: no TCP port can be opened: ", std::strerror(errno)));
  std::random_device device;
  token_ = uint64_t{device()} << 32 | device();
  invitation_ = join_text(token_, " ", ntohs(any.sin_port));
  for (const Address& address : offered) invitation_ += " " + address.text;
}

std::vector<Link> Listener::accept_all(int ranks, double seconds) const {
  std::vector<Link> links(static_cast<size_t>(ranks));
  const Deadline deadline = Deadline::after_s(seconds);
  for (int come = 1; come < ranks && !deadline.passed();) {
    pollfd ready{socket_.number(), POLLIN, 0};
    if (poll(&ready, 1, 50) <= 0) continue;
    const int peer = accept4(socket_.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (peer < 0) continue;
    Link link(peer);
    Hello hello;
    if (!receive_value(peer, hello) || hello.token != token_ || hello.rank < 1 || hello.rank >= ranks) continue;
    if (!send_value(peer, token_)) continue;
    Link& place = links[static_cast<size_t>(hello.rank)];
    come += !place.is_open();
    place = std::move(link);
  }
  return links;
}

Link accept_invitation(const std::string& invitation, int rank, double seconds) {
  std::istringstream words(invitation);
  Hello hello{0, rank};
  uint16_t port = 0;
  words >> hello.token >> port;
  std::vector<std::string> addresses;
  for (std::string address; words >> address;) addresses.push_back(address);
  for (const Deadline deadline = Deadline::after_s(seconds); !deadline.passed();)
    for (const std::string& address : addresses)
      if (Descriptor socket = try_address(address, port, hello); socket.is_open()) return Link(socket.release());
  return {};
}

}  // namespace tandem::comm
