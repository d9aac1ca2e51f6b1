// SPDX-License-Identifier: Apache-2.0
#include "tandem/board/server.h"

#include <gtest/gtest.h>
#include <arpa/inet.h>
#include <httplib.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"

namespace tandem::board {
namespace {

const std::string kFolder = std::filesystem::temp_directory_path().string();

TEST(Server, ServesThePageItsFilesAndTheApiUntilStopped) {
  Server server(kFolder, 0);
  std::atomic<bool> stop = false;
  std::thread thread([&] { server.run(stop); });
  httplib::Client client("127.0.0.1", server.port());
  for (const char* path : {"/", "/app.js", "/style.css", "/dygraph.min.js", "/api/run", "/api/metrics?from_line=0"}) {
    const auto answer = client.Get(path);
    ASSERT_TRUE(answer) << path;
    EXPECT_EQ(answer->status, 200) << path;
    EXPECT_FALSE(answer->body.empty());
  }
  EXPECT_EQ(client.Get("/metrics")->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_EQ(client.Get("/api/samples?step=1")->status, 404);
  EXPECT_EQ(client.Get("/../etc/passwd")->status, 404);
  stop = true;
  thread.join();
}

TEST(Server, StopsWhenItWasStoppedBeforeItRan) {
  Server server(kFolder, 0);
  const std::atomic<bool> stop = true;
  server.run(stop);
}

TEST(Server, ATakenPortIsTheUsersErrorAndNamesAFreeOne) {
  const Server first(kFolder, 0);
  try {
    const Server second(kFolder, first.port());
    FAIL() << "two servers on one port";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("try --port "), std::string::npos) << error.what();
  }
  const Server third(kFolder, 0);
  EXPECT_NE(third.port(), first.port());
}

/// A board of a folder on a thread of its own.
class Running {
 public:
  Running() : server_(kFolder, 0), thread_([this] { server_.run(stop_); }) {}
  ~Running() {
    stop_ = true;
    thread_.join();
  }
  int port() const { return server_.port(); }

 private:
  Server server_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

int connected(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::abort();
  return socket;
}

/// Sends the bytes and reads until the server closes, or for `seconds`.
std::string said_to(int port, const std::string& request, double seconds = 10) {
  const int socket = connected(port);
  ::send(socket, request.data(), request.size(), MSG_NOSIGNAL);
  std::string reply;
  char part[4096];
  for (const Deadline end = Deadline::after_s(seconds); !end.passed();) {
    pollfd one{socket, POLLIN, 0};
    if (::poll(&one, 1, 50) <= 0) continue;
    const ssize_t got = ::recv(socket, part, sizeof part, 0);
    if (got <= 0) break;
    reply.append(part, static_cast<size_t>(got));
  }
  ::close(socket);
  return reply;
}

int64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

// A name of another's may be made to lead to 127.0.0.1; the browser then sends that name.
TEST(Server, AnswersUnderTheNamesOfThisMachineAlone) {
  const Running board;
  const std::string port = std::to_string(board.port());
  for (const std::string& host : {"127.0.0.1:" + port, std::string("localhost"), std::string("localhost:9999"), "[::1]:" + port})
    EXPECT_TRUE(said_to(board.port(), "GET /api/run HTTP/1.1\r\nHost: " + host + "\r\n\r\n").starts_with("HTTP/1.1 200")) << host;
  for (const std::string& host : {"evil.example:" + port, std::string("localhost.evil.example"), std::string("127.0.0.1.nip.io"),
                                  std::string("127.0.0.2"), std::string("[::1].evil.example"), std::string("localhost@evil"),
                                  std::string()}) {
    const std::string reply = said_to(board.port(), "GET /api/run HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    EXPECT_TRUE(reply.starts_with("HTTP/1.1 403")) << host << ": " << reply;
    EXPECT_EQ(reply.find("total_steps"), std::string::npos);
  }
  EXPECT_TRUE(said_to(board.port(), "GET /api/run HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 403")) << "no name at all";
}

TEST(Server, ReadsNoBody) {
  const Running board;
  const int64_t before = peak_bytes();
  const int socket = connected(board.port());
  const std::string head = "POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000000\r\n\r\n", part(1 << 20, 'x');
  ::send(socket, head.data(), head.size(), MSG_NOSIGNAL);
  int64_t sent = 0;
  for (int i = 0; i < 300; ++i) {
    const ssize_t count = ::send(socket, part.data(), part.size(), MSG_NOSIGNAL);
    if (count <= 0) break;
    sent += count;
  }
  ::close(socket);
  EXPECT_LT(sent, 50'000'000) << "it closes";
  EXPECT_LT(peak_bytes() - before, 50'000'000);
  const std::string reply = said_to(board.port(), "POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc");
  EXPECT_TRUE(reply.starts_with("HTTP/1.1 405")) << reply;
}

TEST(Server, HeadersAndRangesWithoutEndAreRefused) {
  const Running board;
  std::string many = "GET /app.js HTTP/1.1\r\nHost: localhost\r\n";
  const int64_t before = peak_bytes();
  std::string ranges = "Range: bytes=0-";
  while (ranges.size() < 7000) ranges += ",0-";
  const std::string reply = said_to(board.port(), many + ranges + "\r\n\r\n");
  EXPECT_LT(reply.size(), 500'000u) << "once the file";
  for (int i = 0; i < 20'000; ++i) many += "X-" + std::to_string(i) + ": " + std::string(1000, 'y') + "\r\n";
  EXPECT_FALSE(said_to(board.port(), many).starts_with("HTTP/1.1 200"));
  EXPECT_FALSE(said_to(board.port(), "GET /" + std::string(100'000, 'a')).starts_with("HTTP/1.1 200"));
  EXPECT_LT(peak_bytes() - before, 100'000'000);
}

TEST(Server, FiveHundredSlowConnectionsDoNotKeepOthersOut) {
  const Running board;
  std::vector<int> slow;
  std::atomic<bool> ends = false;
  for (int i = 0; i < 500; ++i) {
    slow.push_back(connected(board.port()));
    const std::string request = "GET /api/run HTTP/1.1\r\nHost: localhost\r\n";
    ::send(slow.back(), request.data(), i % 3 * request.size() / 2, MSG_NOSIGNAL);  // nothing, half, or all but its end
  }
  std::thread dripping([&] {  // each says a little now and then
    while (!ends) {
      for (const int socket : slow) ::send(socket, "X: y\r\n", 6, MSG_NOSIGNAL | MSG_DONTWAIT);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  });
  for (int i = 0; i < 5; ++i) {
    const double begin = now_s();
    EXPECT_TRUE(said_to(board.port(), "GET /api/run HTTP/1.1\r\nHost: localhost\r\n\r\n", 30).starts_with("HTTP/1.1 200"));
    EXPECT_LT(now_s() - begin, 15);
  }
  ends = true;
  dripping.join();
  for (const int socket : slow) ::close(socket);
}

TEST(Server, ARequestThatIsNotWholeInTimeIsNotWaitedFor) {
  const Running board;
  const double begin = now_s();
  said_to(board.port(), "GET /api/run HTTP/1.1\r\nHost: localhost\r\nX: ", 60);
  EXPECT_LT(now_s() - begin, 15);
}

TEST(Server, StopsWhileClientsHoldConnections) {
  std::vector<int> held;
  double begin = 0;
  {
    const Running board;
    for (int i = 0; i < 100; ++i) held.push_back(connected(board.port()));
    said_to(board.port(), "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    begin = now_s();
  }
  EXPECT_LT(now_s() - begin, 3);
  for (const int socket : held) ::close(socket);
}

}  // namespace
}  // namespace tandem::board
