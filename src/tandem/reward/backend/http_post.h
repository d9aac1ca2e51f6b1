// SPDX-License-Identifier: Apache-2.0
#pragma once
// One question to a server that may be slow, silent, endless or hostile.

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace tandem::reward {

struct HttpReply {
  int status = 0;       ///< 0: there is none, and `problem` says why
  std::string body;     ///< at most kMostReplyBytes
  std::string problem;
  std::string remedy;   ///< what would be right, where another post would meet the same problem
  bool is_plain = false;  ///< where TLS was asked for: of a server that spoke it before, a fault that may pass
};

constexpr int64_t kMostHeaderBytes = int64_t{1} << 20;  ///< of a reply, before its body
constexpr int64_t kMostReplyBytes = int64_t{1} << 24;   ///< of a body, as it comes and as it is unpacked

/// Ownership  its threads, one for each post. Where a name server is asked when the time is over, a thread outlives its post; the
///            destructor waits for it.
/// Threads    any number may post at once.
/// Blocking   post() until the reply is whole, and never beyond its deadline: name, connection, headers and body share it. give_up()
///            ends it at once.
/// Errors     none: what goes wrong is a reply without a status. UserError for a reply beyond the bounds above.
class HttpPoster {
 public:
  /// `server` is scheme, host and port; errors name `where`.
  HttpPoster(std::string server, std::string where) : server_(std::move(server)), where_(std::move(where)) {}
  ~HttpPoster();
  HttpPoster(const HttpPoster&) = delete;
  HttpPoster& operator=(const HttpPoster&) = delete;

  HttpReply post(const std::string& path, const std::string& body, double timeout_s);
  /// Ends all posts in progress; later ones work.
  void give_up() noexcept;

 private:
  struct Call;
  void ask(Call& call, const std::string& path, const std::string& body, double timeout_s) const;
  void wait_for(std::thread thread, const std::shared_ptr<Call>& call);

  std::string server_, where_;
  std::mutex mutex_;
  int64_t num_given_up_ = 0;
  std::list<std::thread> strays_;  // of posts that ended before they did
};

}  // namespace tandem::reward
