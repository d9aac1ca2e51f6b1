// SPDX-License-Identifier: Apache-2.0
#pragma once
// A process that a benchmark starts beside itself, and asks.

#include <sys/types.h>

#include <functional>
#include <nlohmann/json_fwd.hpp>

namespace tandem::bench {

/// Ownership  a forked process, which is killed with this object, or with this process. To be made while no other thread runs.
/// Threads    one.
/// Blocking   receive, at most its deadline.
/// Errors     PeerError with what went wrong there, or if it is gone or silent.
class Child {
 public:
  /// Answers a request.
  using Serve = std::function<nlohmann::json(const nlohmann::json&)>;
  /// There, `make` is called at once, and what it gives answers each request.
  explicit Child(const std::function<Serve()>& make);
  ~Child();
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;

  /// Requests are answered in order.
  void send(const nlohmann::json& request);
  nlohmann::json receive(double deadline_s = 120);
  /// False if there is no answer within so many seconds.
  bool try_receive(double seconds, nlohmann::json& answer);
  nlohmann::json ask(const nlohmann::json& request);

 private:
  pid_t process_ = -1;
  int line_ = -1;
};

}  // namespace tandem::bench
