// SPDX-License-Identifier: Apache-2.0
// What a client says to the page of a run: it gets an answer that begins as HTTP does, or none, and the page goes on.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "folder.h"
#include "tandem/board/server.h"

using namespace tandem;

namespace {

class Page {
 public:
  Page() : server_((folder_.write("metrics.jsonl", "{\"step\":1}\n{\"step\":2}\n"), folder_.path()), 0) {
    thread_ = std::thread([this] { server_.run(stop_); });
  }
  ~Page() {
    stop_ = true;
    thread_.join();
  }
  int port() const { return server_.port(); }

 private:
  fuzz::Folder folder_;
  board::Server server_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// Closed connections keep their ports for a minute, and some hundred are made in a second: then one waits for a port.
int connected(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int attempt = 0; attempt < 900; ++attempt) {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return socket;
    const int fault = errno;
    ::close(socket);
    if (fault == EINTR) continue;  // by the alarm of the fuzzer
    if (fault != EADDRNOTAVAIL) {
      std::perror(("connect: " + std::to_string(fault)).c_str());
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  std::abort();
}

// All that the server says to the bytes, after which nothing comes.
std::string answer_to(int port, std::string_view bytes) {
  const int socket = connected(port);
  const timeval patience{10, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  ::shutdown(socket, SHUT_WR);
  std::string answer;
  char part[1 << 16];
  ssize_t got = 0;
  while ((got = ::recv(socket, part, sizeof part, 0)) > 0) answer.append(part, static_cast<size_t>(got));
  if (got < 0 && errno == EAGAIN) std::abort();  // it hangs
  ::close(socket);
  return answer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Page page;
  const std::string answer = answer_to(page.port(), {reinterpret_cast<const char*>(data), size});
  if (!answer.empty() && !answer.starts_with("HTTP/1.1 ")) std::abort();
  if (answer.size() > (size_t{1} << 20)) std::abort();
  return 0;
}
