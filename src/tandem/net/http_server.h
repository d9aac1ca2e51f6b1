// SPDX-License-Identifier: Apache-2.0
#pragma once
// The library's HTTP server with bounds on what a client may hold: time, bytes and connections.

#include <httplib.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "tandem/base/clock.h"

namespace tandem::net {

struct HttpLimits {
  double request_s = 5;             ///< for a request to be whole
  double reply_s = 60;              ///< for its reply to be taken
  size_t request_bytes = 64 << 10;  ///< headers and body
  size_t threads = 32;              ///< connections that are answered at a time
  size_t waiting = 512;             ///< accepted connections beyond them; then the one that waits longest is closed
};

/// Answers one request of each connection, then closes it: so no connection is held by one that asks nothing. Where all threads are
/// taken and others wait, those go that are slowest to ask, then those that are slowest to take their reply.
///
/// Ownership  its threads, which run while it listens.
/// Threads    tend() from any, every 50 ms or so; the rest as httplib::Server.
/// Read next  board/server.h, which says what is answered.
class HttpServer : public httplib::Server {
 public:
  explicit HttpServer(const HttpLimits& limits);
  ~HttpServer() override;
  /// Makes room where others wait.
  void tend();

 private:
  class Connection;
  class Pool;
  // Runs on a thread of the pool; on the thread that listens, which drops what cannot wait, it closes alone.
  bool process_and_close_socket(socket_t socket) override;
  template <class Stream>
  void answer(Stream& connection);
  void add(std::function<void()> task);
  void work();
  void close_all();
  void cut(double asks_s, double takes_s);

  HttpLimits limits_;
  std::mutex mutex_;  // of what follows
  std::condition_variable added_;
  std::deque<std::function<void()>> waiting_;
  std::list<Connection*> open_;
  std::vector<std::thread> threads_;
  size_t num_busy_ = 0;
  bool closing_ = false;
};

}  // namespace tandem::net
