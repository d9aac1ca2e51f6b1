// SPDX-License-Identifier: Apache-2.0
// What a server of scores answers, byte by byte as it comes: a reply with scores for as many answers as the first byte says, one without
// a status, or a UserError. The bytes are also read as the body alone.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "../loopback_listener.h"
#include "tandem/base/error.h"
#include "tandem/reward/backend/http_post.h"
#include "tandem/reward/http_rule.h"
#include "tandem/reward/rule.h"

using namespace tandem;

namespace {

/// Answers each connection with the same bytes, then closes it.
class Server {
 public:
  Server() : thread_([this] { serve(); }) {}
  ~Server() {
    ends_ = true;
    thread_.join();
  }
  int port() const { return listener_.port(); }
  void answers(std::string_view bytes) { bytes_ = bytes; }

 private:
  void serve() {
    while (!ends_) {
      const int peer = listener_.accept();
      if (peer < 0) continue;
      const linger at_once{1, 0};  // without it thousands of closed connections would wait, and no port be left
      ::setsockopt(peer, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      char request[4096];
      if (::recv(peer, request, sizeof request, 0) > 0) ::send(peer, bytes_.data(), bytes_.size(), MSG_NOSIGNAL);
      ::shutdown(peer, SHUT_WR);
      while (::recv(peer, request, sizeof request, 0) > 0) {
      }
      ::close(peer);
    }
  }

  test::LoopbackListener listener_;
  std::string bytes_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

void read_body(std::string_view body, size_t count) {
  try {
    if (reward::scores_of_reply(body, count, "fuzz").size() != count) std::abort();
  } catch (const UserError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static Server server;
  static reward::HttpPoster poster("http://127.0.0.1:" + std::to_string(server.port()), "fuzz");
  const size_t count = data[0] % 8;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  read_body(bytes, count);
  server.answers(bytes);
  try {
    const reward::HttpReply reply = poster.post("/", "{}", 5);
    if (static_cast<int64_t>(reply.body.size()) > reward::kMostReplyBytes) std::abort();
    if (reply.status == 200) read_body(reply.body, count);
  } catch (const UserError&) {
    return 0;
  }
  return 0;
}
