// SPDX-License-Identifier: Apache-2.0
#include "queue/child.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/strings.h"

namespace tandem::bench {
namespace {

using nlohmann::json;

constexpr size_t kMaxText = 64 << 10;  // a message is one packet

void send_text(int line, const std::string& text) {
  if (text.size() > kMaxText || ::send(line, text.data(), text.size(), MSG_NOSIGNAL) != std::ssize(text))
    throw PeerError(join_text("a process of the benchmark is gone: ", std::strerror(errno)));
}

// Empty at the end.
std::string receive_text(int line) {
  std::string text(kMaxText, ' ');
  ssize_t bytes = 0;
  do bytes = ::recv(line, text.data(), text.size(), 0);
  while (bytes < 0 && errno == EINTR);
  text.resize(static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
  return text;
}

[[noreturn]] void live(int line, const std::function<Child::Serve()>& make) {
  try {
    const Child::Serve serve = make();
    for (std::string text = receive_text(line); !text.empty(); text = receive_text(line)) send_text(line, serve(json::parse(text)).dump());
  } catch (const std::exception& e) {
    try {
      send_text(line, json{{"error", e.what()}}.dump());
    } catch (const std::exception&) {  // nobody is there to hear it
    }
  }
  ::_exit(0);
}

}  // namespace

Child::Child(const std::function<Serve()>& make) {
  int lines[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, lines) != 0) throw PeerError(join_text("socketpair: ", std::strerror(errno)));
  const pid_t parent = ::getpid();
  process_ = ::fork();
  if (process_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(0);  // it is gone already
    ::close(lines[0]);
    live(lines[1], make);
  }
  ::close(lines[1]);
  line_ = lines[0];
  if (process_ < 0) {
    ::close(std::exchange(line_, -1));
    throw PeerError(join_text("fork: ", std::strerror(errno)));
  }
}

Child::Child(Child&& other) noexcept : process_(std::exchange(other.process_, -1)), line_(std::exchange(other.line_, -1)) {}

Child& Child::operator=(Child&& other) noexcept {
  std::swap(process_, other.process_);
  std::swap(line_, other.line_);
  return *this;
}

Child::~Child() {
  if (process_ < 0) return;
  ::close(line_);
  ::kill(process_, SIGKILL);
  while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Child::send(const json& request) { send_text(line_, request.dump()); }

bool Child::try_receive(double seconds, json& answer) {
  pollfd item{line_, POLLIN, 0};
  if (::poll(&item, 1, static_cast<int>(1000 * seconds)) <= 0) return false;
  const std::string text = receive_text(line_);
  if (text.empty()) throw PeerError("a process of the benchmark is gone");
  answer = json::parse(text);
  if (answer.contains("error")) throw PeerError("a process of the benchmark: " + answer["error"].get<std::string>());
  return true;
}

json Child::receive(double deadline_s) {
  json answer;
  if (!try_receive(deadline_s, answer)) throw PeerError(join_text("a process of the benchmark did not answer within ", deadline_s, " s"));
  return answer;
}

json Child::ask(const json& request) {
  send(request);
  return receive();
}

}  // namespace tandem::bench
