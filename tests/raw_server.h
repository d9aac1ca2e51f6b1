// SPDX-License-Identifier: Apache-2.0
#pragma once
// A server that says whatever bytes a test wants, as slowly as it wants.

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "loopback_listener.h"

namespace tandem::test {

/// Answers each connection in a thread of its own. Ends all of them when destroyed.
class RawServer {
 public:
  /// One connection, after its request was read.
  class Peer {
   public:
    Peer(int socket, const std::atomic<bool>& ends) : socket_(socket), ends_(ends) {}
    /// False once the other side has gone, or the server ends.
    bool say(std::string_view bytes) const {
      while (!bytes.empty() && !ends_) {
        pollfd ready{socket_, POLLOUT, 0};
        if (::poll(&ready, 1, 20) <= 0) continue;
        const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent <= 0) return false;
        bytes.remove_prefix(static_cast<size_t>(sent));
      }
      return !ends_;
    }
    /// As say() after so many milliseconds.
    bool pause(int milliseconds) const {
      pollfd gone{socket_, POLLRDHUP, 0};
      for (; milliseconds > 0 && !ends_; milliseconds -= 10)
        if (::poll(&gone, 1, 10) > 0) return false;
      return !ends_;
    }

   private:
    int socket_;
    const std::atomic<bool>& ends_;
  };

  explicit RawServer(std::function<void(const Peer&)> answer) : answer_(std::move(answer)) {
    accepting_ = std::thread([this] { accept_all(); });
  }
  ~RawServer() {
    ends_ = true;
    accepting_.join();
    for (std::thread& one : answering_) one.join();
  }
  RawServer(const RawServer&) = delete;
  RawServer& operator=(const RawServer&) = delete;
  int port() const { return listener_.port(); }
  int num_asked() const { return num_asked_; }

 private:
  void accept_all() {
    while (!ends_) {
      const int peer = listener_.accept();
      if (peer < 0) continue;
      ++num_asked_;
      answering_.emplace_back([this, peer] {
        char request[4096];
        pollfd begun{peer, POLLIN, 0};
        if (::poll(&begun, 1, 2000) > 0 && ::recv(peer, request, sizeof request, 0) > 0) answer_(Peer(peer, ends_));
        ::close(peer);
      });
    }
  }

  std::function<void(const Peer&)> answer_;
  std::atomic<bool> ends_ = false;
  std::atomic<int> num_asked_ = 0;
  LoopbackListener listener_;
  std::thread accepting_;
  std::vector<std::thread> answering_;
};

}  // namespace tandem::test
