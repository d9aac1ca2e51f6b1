// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/endpoint.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <zmq.hpp>

#include "tandem/base/error.h"
#include "tandem/base/file/descriptor.h"

namespace tandem::comm {
namespace {

constexpr int kBacklog = 4096;  // connections that wait to be taken: so a storm of strangers does not keep others out
constexpr int kWaitingRequests = 8;  // of one client, that were not read: it makes one call at a time
constexpr int kKeyChars = 41;  // with the zero behind
constexpr int kGreetingMs = 10'000;                  // for which one may take to say who it is
constexpr int kBeatMs = 2'000, kSilentMs = 60'000;   // a connection on which no whole message comes for so long is made anew
constexpr int kUnsentLetters = 4;                    // while nobody is there to hear them
constexpr int kUnreadLetters = 8;                    // to one that does not read: more are lost
constexpr int64_t kTriesToGetIn = 3;                 // after which a token is wrong

// It lives as long as the process: its end would wait for sockets of threads that are not joined yet.
zmq::context_t& context() {
  static auto* const one = [] {
    auto* made = new zmq::context_t(1);
    made->set(zmq::ctxopt::max_sockets, made->get(zmq::ctxopt::socket_limit));
    return made;
  }();
  return *one;
}

}  // namespace

bool stays_on_this_machine(const std::string& address) {
  for (const char* begin : {"tcp://127.", "tcp://localhost:", "tcp://[::1]:", "ipc://"})
    if (address.starts_with(begin)) return true;
  return false;
}

namespace {

struct AddressesEnd {
  void operator()(addrinfo* found) const { ::freeaddrinfo(found); }
};
using Addresses = std::unique_ptr<addrinfo, AddressesEnd>;

// Of "tcp://HOST:PORT"; none if nobody knows the host.
Addresses addresses_of(const std::string& address, int kind) {
  const size_t colon = address.rfind(':'), begin = std::strlen("tcp://");
  if (!address.starts_with("tcp://") || colon <= begin) return nullptr;
  std::string host = address.substr(begin, colon - begin);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const addrinfo hints{.ai_flags = AI_NUMERICSERV, .ai_socktype = kind};
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found) != 0) return nullptr;
  return Addresses(found);
}

}  // namespace

std::string local_host_towards(const std::string& address) {
  const Addresses all = addresses_of(address, SOCK_DGRAM);
  for (const addrinfo* each = all.get(); each; each = each->ai_next) {
    const Descriptor line(::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));  // connecting one sends nothing
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    std::array<char, NI_MAXHOST> host{};
    const bool is_known = line.is_open() && ::connect(line.number(), each->ai_addr, each->ai_addrlen) == 0 &&
                          ::getsockname(line.number(), reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
                          ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, host.data(), host.size(), nullptr, 0,
                                        NI_NUMERICHOST) == 0;
    if (is_known) return own.ss_family == AF_INET6 ? "[" + std::string(host.data()) + "]" : std::string(host.data());
  }
  throw UserError(address, all ? "is an address to which this machine has no way" : "names a host that nobody knows",
                  "tcp://HOST:PORT as the run's log says it");
}

bool is_refused(const std::string& address) {
  constexpr int kMomentMs = 200;
  const auto refused = [](int family, const sockaddr* to, socklen_t length) {
    const Descriptor line(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!line.is_open()) return false;
    int error = ::connect(line.number(), to, length) == 0 ? 0 : errno;
    if (pollfd item{line.number(), POLLOUT, 0}; error == EINPROGRESS && ::poll(&item, 1, kMomentMs) > 0) {
      socklen_t size = sizeof error;
      ::getsockopt(line.number(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    return error == ECONNREFUSED || error == ENOENT;
  };
  if (address.starts_with("ipc://")) {
    sockaddr_un to{.sun_family = AF_UNIX, .sun_path = {}};
    address.copy(to.sun_path, sizeof to.sun_path - 1, std::strlen("ipc://"));
    return refused(AF_UNIX, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  }
  const Addresses found = addresses_of(address, SOCK_STREAM);
  bool all = found != nullptr;
  for (const addrinfo* each = found.get(); each && all; each = each->ai_next)
    all = refused(each->ai_family, each->ai_addr, each->ai_addrlen);
  return all;
}

std::string numeric_address(const std::string& address) {
  if (!address.starts_with("tcp://")) return address;
  const Addresses all = addresses_of(address, SOCK_STREAM);
  std::array<char, NI_MAXHOST> host{};
  if (!all || ::getnameinfo(all->ai_addr, all->ai_addrlen, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    throw UserError(address, "names a host that nobody knows",
                    "tcp://HOST:PORT with an address of this machine, such as tcp://127.0.0.1:0");
  const std::string found(host.data());
  return "tcp://" + (all->ai_family == AF_INET6 ? "[" + found + "]" : found) + address.substr(address.rfind(':'));
}

namespace {

// "" where the system does not say it.
std::string host_of(zmq::message_t& part) {
  const char* const host = zmq_msg_gets(part.handle(), "Peer-Address");
  return host ? host : "";
}

}  // namespace

struct Endpoint::Socket {
  Socket(zmq::socket_type type, int64_t most_bytes) : zmq(context(), type) {
    zmq.set(zmq::sockopt::linger, 0);
    const bool answers = type == zmq::socket_type::router;
    zmq.set(zmq::sockopt::maxmsgsize, most_bytes);
    if (answers) zmq.set(zmq::sockopt::rcvhwm, kWaitingRequests);
    if (answers) zmq.set(zmq::sockopt::sndhwm, kUnreadLetters);
    else zmq.set(zmq::sockopt::rcvhwm, kUnreadLetters), zmq.set(zmq::sockopt::sndhwm, kUnsentLetters);
    zmq.set(zmq::sockopt::handshake_ivl, kGreetingMs);
    zmq.set(zmq::sockopt::heartbeat_ivl, kBeatMs);
    zmq.set(zmq::sockopt::heartbeat_timeout, kSilentMs);
    if (!answers) watch();
  }
  ~Socket() {
    if (events) zmq_socket_monitor(zmq.handle(), nullptr, 0);  // else who says it would wait for one who hears it
  }

  // What becomes of its connections. The thread of the system's sockets says it, and must never wait: so what is said has no bound.
  void watch() {
    static std::atomic<int64_t> num_watched = 0;
    const std::string place = "inproc://events/" + std::to_string(num_watched++);
    constexpr int kEvents = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                            ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_DISCONNECTED;
    if (zmq_socket_monitor(zmq.handle(), place.c_str(), kEvents) != 0) throw zmq::error_t();
    events.emplace(context(), zmq::socket_type::pair);
    events->set(zmq::sockopt::linger, 0);
    events->set(zmq::sockopt::rcvhwm, 0);
    events->connect(place);
  }
  void hear_events() {
    zmq::message_t event, place;
    while (events && events->recv(event, zmq::recv_flags::dontwait) && events->recv(place, zmq::recv_flags::dontwait)) {
      uint16_t what = 0;
      std::memcpy(&what, event.data(), std::min(sizeof what, event.size()));
      if (what == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) was_let_in = stands = true;
      else if (what == ZMQ_EVENT_DISCONNECTED) num_breaks += std::exchange(stands, false);
      else ++num_refused;
    }
  }

  zmq::socket_t zmq;
  std::optional<zmq::socket_t> events;  // of one that calls
  bool was_let_in = false, stands = false;
  int64_t num_refused = 0, num_breaks = 0;
};

ServerKeys make_keys() {
  std::array<char, kKeyChars> shown{}, secret{};
  if (zmq_curve_keypair(shown.data(), secret.data()) != 0) throw PeerError("this libzmq has no CURVE");
  return {shown.data(), secret.data()};
}

Endpoint::Endpoint(std::unique_ptr<Socket> socket, std::string address, bool answers_many)
    : socket_(std::move(socket)), address_(std::move(address)), answers_many_(answers_many) {}
Endpoint::~Endpoint() = default;
Endpoint::Endpoint(Endpoint&&) noexcept = default;
Endpoint& Endpoint::operator=(Endpoint&&) noexcept = default;

Endpoint Endpoint::at(const std::string& address, const ServerKeys& keys) {
  try {
    auto made = std::make_unique<Socket>(zmq::socket_type::router, kMaxRequestBytes);
    zmq::socket_t& socket = made->zmq;
    socket.set(zmq::sockopt::curve_server, true);
    socket.set(zmq::sockopt::curve_secretkey, keys.secret_key);
    socket.set(zmq::sockopt::backlog, kBacklog);
    const std::string own = numeric_address(address);
    socket.set(zmq::sockopt::ipv6, own.starts_with("tcp://["));
    socket.bind(own);
    std::string bound = socket.get(zmq::sockopt::last_endpoint);
    return {std::move(made), std::move(bound), true};
  } catch (const zmq::error_t& e) {
    throw UserError(address, e.what(), "tcp://HOST:PORT with an address of this machine and a free port, such as tcp://127.0.0.1:0");
  }
}

Endpoint Endpoint::to(const std::string& address, const std::string& token, int64_t most_bytes) {
  if (token.size() != kKeyChars - 1)
    throw UserError(address, join_text("a token of ", token.size(), " characters"),
                    join_text(kKeyChars - 1, " of them, as the run wrote it"));
  try {
    auto made = std::make_unique<Socket>(zmq::socket_type::dealer, most_bytes);
    zmq::socket_t& socket = made->zmq;
    const ServerKeys own = make_keys();
    socket.set(zmq::sockopt::curve_serverkey, token);
    socket.set(zmq::sockopt::curve_publickey, own.public_key);
    socket.set(zmq::sockopt::curve_secretkey, own.secret_key);
    const std::string there = numeric_address(address);
    socket.set(zmq::sockopt::ipv6, there.starts_with("tcp://["));
    socket.connect(there);
    return {std::move(made), there, false};
  } catch (const zmq::error_t& e) {
    throw UserError(address, e.what(), "tcp://HOST:PORT as the run's log says it, and the token that the run wrote");
  }
}

bool Endpoint::is_turned_away() const { return !socket_->was_let_in && socket_->num_refused >= kTriesToGetIn; }
int64_t Endpoint::num_breaks() const { return socket_->num_breaks; }

void Endpoint::send(const Letter& letter) {
  const int64_t most = answers_many_ ? kMaxMessageBytes : kMaxRequestBytes;
  if (std::ssize(letter.bytes) > most)
    throw PeerError(join_text(address_, ": a message of ", letter.bytes.size(), " bytes, of at most ", most));
  try {
    if (answers_many_ && !socket_->zmq.send(zmq::buffer(letter.peer), zmq::send_flags::sndmore | zmq::send_flags::dontwait)) return;
    (void)socket_->zmq.send(zmq::buffer(letter.bytes), zmq::send_flags::dontwait);
  } catch (const zmq::error_t& e) {
    if (e.num() != EHOSTUNREACH) throw PeerError(address_ + ": " + e.what());
  }
}

std::optional<Letter> Endpoint::receive(double seconds) {
  zmq::socket_t& socket = socket_->zmq;
  try {
    zmq::pollitem_t item{socket.handle(), 0, ZMQ_POLLIN, 0};
    zmq::poll(&item, 1, std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds)));
    socket_->hear_events();
    if (!(item.revents & ZMQ_POLLIN)) return std::nullopt;
    Letter letter;
    zmq::message_t part;
    int64_t num_parts = 0;
    for (bool more = true; more; more = part.more()) {
      if (!socket.recv(part, zmq::recv_flags::dontwait)) return std::nullopt;
      const auto* bytes = static_cast<const std::byte*>(part.data());
      if (answers_many_ && num_parts == 0) letter.peer = part.to_string();
      else letter.bytes.assign(bytes, bytes + part.size()), letter.host = host_of(part);
      ++num_parts;
    }
    if (num_parts != (answers_many_ ? 2 : 1)) letter.bytes.clear();
    return letter;
  } catch (const zmq::error_t& e) {
    if (e.num() == EINTR) return std::nullopt;
    throw PeerError(address_ + ": " + e.what());
  }
}

}  // namespace tandem::comm
