// SPDX-License-Identifier: Apache-2.0
// Ranks as processes that the first of them has started: this program again, with the same arguments, and sockets to all others.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>
#include <optional>
#include <sstream>
#include <system_error>
#include <tuple>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/file/descriptor.h"
#include "tandem/base/json_file.h"
#include "tandem/base/log.h"
#include "tandem/comm/backend/process/process_job.h"
#include "tandem/comm/backend/process/socket_transport.h"
#include "tandem/comm/launch.h"

extern char** environ;

namespace tandem::comm {
namespace {

// RANK PARENT LINK PEER PEER ...: the process that started this one, and descriptors: that of the heartbeat, and those to each rank.
constexpr const char* kSeatVariable = "TANDEM_STARTED_RANK";
constexpr double kLeastStart_s = 120;  // a program that loads libraries over a network, beside others that do
constexpr double kEnd_s = 20;          // a rank that is stuck ends itself before
constexpr double kKilled_s = 5;        // after it a killed one is left, which the kernel cannot end
constexpr int kMoment_ms = 100;

[[noreturn]] void fail_with_errno(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

std::pair<Descriptor, Descriptor> socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) fail_with_errno("socketpair");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// Both ends of every connection, before any rank is started: [a][b] is what rank a has to rank b.
struct Connections {
  std::vector<std::vector<Descriptor>> peers;
  std::vector<Descriptor> links, links_of_first;  // of the heartbeat, by rank

  explicit Connections(int ranks) : links(static_cast<size_t>(ranks)), links_of_first(static_cast<size_t>(ranks)) {
    const auto size = static_cast<size_t>(ranks);
    for (size_t a = 0; a < size; ++a) peers.emplace_back(size);
    for (size_t a = 0; a < size; ++a)
      for (size_t b = a + 1; b < size; ++b) std::tie(peers[a][b], peers[b][a]) = socket_pair();
    for (size_t r = 1; r < size; ++r) std::tie(links_of_first[r], links[r]) = socket_pair();
  }
};

std::vector<std::string> own_arguments() {
  std::istringstream text(RegularFile("/proc/self/cmdline").read_whole());
  std::vector<std::string> words;
  for (std::string word; std::getline(text, word, '\0');) words.push_back(word);
  return words;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  for (std::string& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

/// How a process ended, in words; "" if it ended as it should.
std::string ending(int status) {
  if (WIFSIGNALED(status)) return join_text("signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "" : join_text("exit code ", WEXITSTATUS(status));
}

/// The ranks that this process has started. What is left of them ends with it.
class Children {
 public:
  ~Children() {
    kill_all();
    end();
  }

  void start(int rank, const Connections& connections) {
    const auto r = static_cast<size_t>(rank);
    std::string seat = join_text(kSeatVariable, "=", rank, " ", ::getpid(), " ", connections.links[r].number());
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, connections.links[r].number(), connections.links[r].number());  // so it stays open there
    for (const Descriptor& peer : connections.peers[r]) {
      seat += join_text(" ", peer.number());
      if (peer.is_open()) posix_spawn_file_actions_adddup2(&actions, peer.number(), peer.number());
    }
    std::vector<std::string> arguments = own_arguments(), environment;
    for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
    environment.push_back(seat);
    pid_t process = -1;
    const int failed =
        ::posix_spawn(&process, "/proc/self/exe", &actions, nullptr, pointers(arguments).data(), pointers(environment).data());
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) throw std::system_error(failed, std::generic_category(), join_text("rank ", rank, " cannot be started"));
    all_.push_back({rank, process});
  }

  /// How the process of that rank ended, if it has. Waits for it, at most so long.
  std::optional<int> ended(int rank, double seconds) {
    Child& child = all_[static_cast<size_t>(rank - 1)];
    for (const Deadline deadline = Deadline::after_s(seconds);; usleep(kMoment_us)) {
      look(child);
      if (child.has_ended || deadline.passed()) return child.has_ended ? std::optional(child.status) : std::nullopt;
    }
  }

  /// Waits for all, and kills those that do not end, each named.
  void end() noexcept {
    const Deadline deadline = Deadline::after_s(kEnd_s), last = Deadline::after_s(kEnd_s + kKilled_s);
    for (Child& child : all_)
      for (; !child.has_ended; usleep(kMoment_us)) {
        look(child);
        if (child.has_ended && WIFSIGNALED(child.status) && !child.is_killed)
          log::warning("rank ", child.rank, " was ended by ", ending(child.status));
        if (child.has_ended) break;
        if (!child.is_killed && (child.is_stopped || deadline.passed())) {
          const std::string why = child.is_stopped ? "is stopped" : join_text("does not end within ", kEnd_s, " s");
          log::warning("rank ", child.rank, " ", why, ": it is killed");
          kill(child);
        }
        if (!last.passed()) continue;
        log::warning("rank ", child.rank, " is left behind: process ", child.process, " does not end though it is killed");
        child.has_ended = true;
      }
  }

  /// What went wrong in a process that has ended, the first; "" if nothing did. After end().
  std::string failure() const {
    for (const Child& child : all_)
      if (const std::string how = ending(child.status); !how.empty())
        return join_text("rank ", child.rank, " had done its part, and its process then ended with ", how);
    return "";
  }

  /// A stopped one goes on, and ends as it finds the others gone.
  void wake_stopped() noexcept {
    for (const Child& child : all_)
      if (!child.has_ended) ::kill(child.process, SIGCONT);
  }

  void kill_all() noexcept {
    for (Child& child : all_)
      if (!child.has_ended) kill(child);
  }

 private:
  static constexpr useconds_t kMoment_us = 2000;
  struct Child {
    int rank;
    pid_t process;
    int status = 0;
    bool has_ended = false, is_stopped = false, is_killed = false;
  };
  static void kill(Child& child) {
    child.is_killed = true;
    ::kill(child.process, SIGKILL);
  }
  static void look(Child& child) {
    int status = 0;
    if (child.has_ended || ::waitpid(child.process, &status, WNOHANG | WUNTRACED | WCONTINUED) != child.process) return;
    child.is_stopped = WIFSTOPPED(status);
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) return;
    child.status = status, child.has_ended = true;
  }
  std::vector<Child> all_;
};

enum class Sign { kNone, kThere, kGone };

/// Whether the other end has said something, which stays to be read, or is gone.
Sign sign_of(const Link& link, int wait_ms) {
  pollfd watched{link.socket(), POLLIN, 0};
  if (poll(&watched, 1, wait_ms) <= 0) return Sign::kNone;
  char first = 0;
  const ssize_t got = ::recv(link.socket(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
  return got > 0 ? Sign::kThere : got < 0 && (errno == EAGAIN || errno == EINTR) ? Sign::kNone : Sign::kGone;
}

/// A rank ended before it met the others: with an error of its own, which it has reported, or by a signal.
[[noreturn]] void throw_for_lost(Children& children, int rank) {
  constexpr double kReap_s = 5;
  const std::optional<int> status = children.ended(rank, kReap_s);
  const std::string how = status ? ending(*status) : "";
  const std::string what = join_text("rank ", rank, " ended before all ranks had started", how.empty() ? "" : ": " + how);
  if (status && WIFSIGNALED(*status) && (WTERMSIG(*status) == SIGINT || WTERMSIG(*status) == SIGTERM)) throw Interrupted(what);
  if (status && WIFEXITED(*status) && WEXITSTATUS(*status) != 0) throw ReportedElsewhere(WEXITSTATUS(*status), what);
  throw PeerError(what);
}

/// Until all ranks that were started have come: only then the heartbeat watches.
void meet(std::vector<Link>& links, Children& children, double seconds) {
  const Deadline deadline = Deadline::after_s(seconds);
  for (int rank = 1; rank < static_cast<int>(links.size()); ++rank)
    for (Sign sign = Sign::kNone; sign != Sign::kThere;) {
      sign = sign_of(links[static_cast<size_t>(rank)], kMoment_ms);
      // Whichever is gone is named, not the one whose turn it is.
      for (int other = 1; other < static_cast<int>(links.size()); ++other)
        if (sign_of(links[static_cast<size_t>(other)], 0) == Sign::kGone) throw_for_lost(children, other);
      if (sign != Sign::kThere && deadline.passed())
        throw PeerError(join_text("rank 0: the start: no sign of rank ", rank, " within ", seconds, " s"));
    }
  for (Link& link : links) link.send({News::kBeat, 0});
}

/// A rank that was started says that it is here, and waits until all are.
void meet_first(int rank, Link& first, double seconds) {
  first.send({News::kBeat, rank});
  for (const Deadline deadline = Deadline::after_s(seconds);;) {
    const Sign sign = sign_of(first, kMoment_ms);
    if (sign == Sign::kThere) return;
    if (sign == Sign::kGone) throw ReportedElsewhere(3, join_text("rank ", rank, ": the start: rank 0 is gone"));
    if (deadline.passed()) throw PeerError(join_text("rank ", rank, ": the start: no sign of rank 0 within ", seconds, " s"));
  }
}

double start_seconds(double deadline_s) { return std::max(deadline_s, kLeastStart_s); }

struct Seat {
  int rank = 0;
  pid_t parent = 0;
  RankSockets sockets;
};

/// What this process was started with; processes that it starts do not get it.
Seat take_seat() {
  std::istringstream words(std::getenv(kSeatVariable));
  Seat seat;
  int link = -1;
  words >> seat.rank >> seat.parent >> link;
  seat.sockets.peers.assign(std::istream_iterator<int>(words), {});
  const auto size = static_cast<int>(seat.sockets.peers.size());
  if (seat.rank < 1 || seat.rank >= size || link < 0 || ::getppid() != seat.parent)
    throw UserError(kSeatVariable, join_text("is ", words.str(), ", and no rank has started this process so"), "no such variable");
  ::unsetenv(kSeatVariable);
  for (const int socket : seat.sockets.peers)
    if (socket >= 0) ::fcntl(socket, F_SETFD, FD_CLOEXEC);
  ::fcntl(link, F_SETFD, FD_CLOEXEC);
  // A stopped rank goes on where the first is gone, and finds its socket closed. The others see to that without a signal.
  ::prctl(PR_SET_PDEATHSIG, SIGCONT);
  seat.sockets.links.resize(static_cast<size_t>(size));
  seat.sockets.links[0] = Link(link);
  return seat;
}

void run_started(double deadline_s, const RankBody& body) {
  Seat seat = take_seat();
  meet_first(seat.rank, seat.sockets.links[0], start_seconds(deadline_s));
  SocketTransport transport(seat.rank, std::move(seat.sockets), [parent = seat.parent] {
    if (::getppid() == parent) ::kill(parent, SIGCONT);  // where it is stopped, it goes on, and ends as it finds the others gone
  });
  run_as_rank(transport, deadline_s, body);
}

RankSockets sockets_of_first(Connections& connections) {
  RankSockets sockets;
  for (Descriptor& peer : connections.peers[0]) sockets.peers.push_back(peer.release());
  for (Descriptor& link : connections.links_of_first) sockets.links.push_back(link.is_open() ? Link(link.release()) : Link());
  return sockets;
}

}  // namespace

bool is_started_rank() { return std::getenv(kSeatVariable) != nullptr; }

void run_processes(int ranks, double deadline_s, const RankBody& body) {
  if (is_started_rank()) return run_started(deadline_s, body);
  if (ranks < 1) throw UserError("ranks", join_text("is ", ranks), "at least 1");
  Children children;
  std::exception_ptr error;
  bool have_met = false;
  try {
    RankSockets sockets;
    {
      Connections connections(ranks);  // this process closes the ends of the others here
      for (int rank = 1; rank < ranks; ++rank) children.start(rank, connections);
      sockets = sockets_of_first(connections);
    }
    meet(sockets.links, children, start_seconds(deadline_s));
    have_met = true;
    SocketTransport transport(0, std::move(sockets), [&] { children.wake_stopped(); });
    run_as_rank(transport, deadline_s, body);
  } catch (...) {
    error = std::current_exception();
  }
  if (!have_met) children.kill_all();
  children.end();  // their sockets are closed by now
  if (error) std::rethrow_exception(error);
  if (const std::string failure = children.failure(); !failure.empty()) throw PeerError(failure);
}

}  // namespace tandem::comm
