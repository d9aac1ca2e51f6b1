// SPDX-License-Identifier: Apache-2.0
#pragma once
// A desk behind a socket: a ZeroMQ router on a thread of its own. To what it cannot read it answers nothing.

#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "tandem/comm/endpoint.h"
#include "tandem/queue/desk.h"

namespace tandem::queue::wire {

/// Ownership  uses the desk, under `mutex`, as everyone else who uses it or its controller.
/// Threads    owns and joins its thread. A call takes as long as the controller; nobody waits for a client.
/// Errors     UserError for an address that it cannot have. A fault of the controller ends the thread; fault() has it.
class Server {
 public:
  /// "tcp://127.0.0.1:0": any free port. Who calls needs the public key of `keys`.
  Server(Desk& desk, std::mutex& mutex, const std::string& address, const comm::ServerKeys& keys = comm::make_keys());
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// At which clients reach it, with its port.
  const std::string& address() const { return endpoint_.address(); }
  /// What they need.
  const std::string& token() const { return token_; }
  /// Why it answers no more; null while it does.
  std::exception_ptr fault() const;

 private:
  void serve();
  void answer(comm::Letter letter);

  Desk& desk_;
  std::mutex& mutex_;
  comm::Endpoint endpoint_;
  const std::string token_;
  mutable std::mutex fault_mutex_;
  std::exception_ptr fault_;
  std::atomic<bool> is_closing_ = false;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace tandem::queue::wire
