// SPDX-License-Identifier: Apache-2.0
#pragma once
// A socket of a test that waits for connections, on a free port of 127.0.0.1.

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

namespace tandem::test {

class LoopbackListener {
 public:
  LoopbackListener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(socket_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(socket_, 100) != 0) std::abort();
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~LoopbackListener() { ::close(socket_); }
  LoopbackListener(const LoopbackListener&) = delete;
  LoopbackListener& operator=(const LoopbackListener&) = delete;
  int port() const { return port_; }

  /// The next connection, which the caller closes; -1 where none comes within 20 ms.
  int accept() const {
    pollfd ready{socket_, POLLIN, 0};
    return ::poll(&ready, 1, 20) > 0 ? ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC) : -1;
  }

 private:
  int socket_, port_ = 0;
};

}  // namespace tandem::test
