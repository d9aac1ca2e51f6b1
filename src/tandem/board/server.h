// SPDX-License-Identifier: Apache-2.0
#pragma once
// `tandem board`: the web page of a run, live or finished, on 127.0.0.1 alone.

#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "tandem/base/asset.h"

namespace tandem::board {

/// The files of the page, compiled in by cmake/embed.cmake from board/static and third_party/dygraphs.
std::span<const Asset> assets();

/// Ownership  owns its socket and threads; the run folder is only read.
/// Threads    run() on one thread; `stop` may be set from any, also from a signal handler.
/// Blocking   run() until `stop` is true.
/// Safety     answers GET alone, and only where the header Host names this machine: not to the page of another host whose name was
///            made to lead here. Clients have little time, few bytes and no connection for long: http_server.h.
/// Errors     UserError if the run folder is missing, or the port is taken (naming a free one).
/// Read next  run_folder.h (what the page gets), static/app.js (the page).
class Server {
 public:
  /// `port` 0 takes the first free one from kFirstPort on.
  Server(const std::string& run_dir, int port);
  ~Server();

  int port() const;
  std::string url() const;
  void run(const std::atomic<bool>& stop);

  static constexpr int kFirstPort = 8700;

 private:
  struct Http;
  std::unique_ptr<Http> http_;
};

}  // namespace tandem::board
