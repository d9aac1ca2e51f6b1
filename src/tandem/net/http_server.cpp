// SPDX-License-Identifier: Apache-2.0
#include "tandem/net/http_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

namespace tandem::net {
namespace {

// Of a connection that may be cut where others wait: how long it may ask, and how long take its reply.
constexpr double kAsks_s = 0.1, kTakes_s = 2;
constexpr int kDrain_ms = 100;  // for what a client still sends when its answer is there; as many bytes as a request may have

}  // namespace

/// One socket as the library reads and writes it.
class HttpServer::Connection : public httplib::Stream {
 public:
  Connection(socket_t socket, const HttpLimits& limits)
      : socket_(socket), limits_(limits), deadline_(Deadline::after_s(limits.request_s)), begun_s_(now_s()) {}

  bool is_readable() const override { return at_ < buffered_ || ready(POLLIN); }
  bool is_writable() const override { return ready(POLLOUT); }
  ssize_t read(char* to, size_t size) override {
    if (at_ == buffered_ && !fill()) return -1;
    const size_t count = std::min(size, buffered_ - at_);
    std::copy_n(buffer_ + at_, count, to);
    at_ += count;
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char* from, size_t size) override {
    if (!replies_.exchange(true)) deadline_ = Deadline::after_s(limits_.reply_s);
    if (!ready(POLLOUT)) return -1;
    return ::send(socket_, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return socket_; }

  /// The request is there: what follows is our time.
  void asked() { replies_ = true, deadline_ = Deadline::after_s(limits_.reply_s); }
  bool older_than(double asks_s, double takes_s) const { return now_s() - begun_s_ > (replies_ ? takes_s : asks_s); }
  void cut() const { ::shutdown(socket_, SHUT_RDWR); }
  /// To close a socket with bytes unread would take back the answer.
  void drain() {
    ::shutdown(socket_, SHUT_WR);
    pollfd one{socket_, POLLIN, 0};
    const Deadline end = Deadline::after_s(kDrain_ms / 1000.0);
    for (size_t left = limits_.request_bytes; left > 0 && !end.passed() && ::poll(&one, 1, kDrain_ms) > 0;) {
      const ssize_t got = ::recv(socket_, buffer_, std::min(left, sizeof buffer_), MSG_DONTWAIT);
      if (got <= 0) return;
      left -= static_cast<size_t>(got);
    }
  }

 private:
  bool ready(short what) const {
    pollfd one{socket_, what, 0};
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_.time() - Clock::now()).count();
      const int found = left <= 0 ? 0 : ::poll(&one, 1, static_cast<int>(left));
      if (found >= 0 || errno != EINTR) return found > 0;
    }
  }
  bool fill() {
    if (num_read_ >= limits_.request_bytes || !ready(POLLIN)) return false;
    const ssize_t got = ::recv(socket_, buffer_, std::min(sizeof buffer_, limits_.request_bytes - num_read_), MSG_DONTWAIT);
    at_ = 0;
    buffered_ = got > 0 ? static_cast<size_t>(got) : 0;
    num_read_ += buffered_;
    return buffered_ > 0;
  }

  socket_t socket_;
  const HttpLimits& limits_;
  Deadline deadline_;
  double begun_s_;
  std::atomic<bool> replies_ = false;
  char buffer_[4096];
  size_t at_ = 0, buffered_ = 0, num_read_ = 0;
};

/// The library's form of the pool.
class HttpServer::Pool : public httplib::TaskQueue {
 public:
  using Taken = decltype(std::declval<httplib::TaskQueue&>().enqueue(nullptr));  // bool; of old versions of the library void

  explicit Pool(HttpServer& server) : server_(server) {}
  Taken enqueue(std::function<void()> task) override {
    server_.add(std::move(task));
    return Taken(true);
  }
  void shutdown() override { server_.close_all(); }

 private:
  HttpServer& server_;
};

HttpServer::HttpServer(const HttpLimits& limits) : limits_(limits) {
  new_task_queue = [this] { return new Pool(*this); };
}

HttpServer::~HttpServer() { close_all(); }

// On the thread that listens.
void HttpServer::add(std::function<void()> task) {
  std::function<void()> dropped;
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(task));
    if (waiting_.size() > limits_.waiting) {
      dropped = std::move(waiting_.front());
      waiting_.pop_front();
    }
    const bool more = waiting_.size() > threads_.size() - num_busy_;
    if (more && threads_.size() < limits_.threads) threads_.emplace_back([this] { work(); });
  }
  added_.notify_one();
  if (dropped) dropped();
}

void HttpServer::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    added_.wait(lock, [&] { return closing_ || !waiting_.empty(); });
    if (closing_) return;
    const std::function<void()> task = std::move(waiting_.front());
    waiting_.pop_front();
    ++num_busy_;
    lock.unlock();
    task();
    lock.lock();
    --num_busy_;
  }
}

// On the thread that listens, or in the destructor.
void HttpServer::close_all() {
  std::deque<std::function<void()>> dropped;
  std::vector<std::thread> threads;
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    dropped.swap(waiting_);
    threads.swap(threads_);
    for (const Connection* one : open_) one->cut();
  }
  added_.notify_all();
  for (std::thread& thread : threads) thread.join();
  for (const auto& task : dropped) task();
}

void HttpServer::cut(double asks_s, double takes_s) {
  size_t count = waiting_.size();
  for (const Connection* one : open_) {
    if (count == 0) return;
    if (!one->older_than(asks_s, takes_s)) continue;
    one->cut();
    --count;
  }
}

void HttpServer::tend() {
  std::lock_guard lock(mutex_);
  if (!waiting_.empty() && num_busy_ == threads_.size()) cut(kAsks_s, kTakes_s);
}

template <class Stream>
void HttpServer::answer(Stream& connection) {
  bool closed = true;
  const auto whole = [&](httplib::Request& request) {
    connection.asked();
    request.ranges.clear();  // some hundreds of them in one header would multiply the reply
  };
  // Newer versions of the library want to know who speaks with whom.
  if constexpr (requires { process_request(connection, "", 0, "", 0, true, closed, whole); })
    process_request(connection, "", 0, "", 0, true, closed, whole);
  else process_request(connection, true, closed, whole);
}

bool HttpServer::process_and_close_socket(socket_t socket) {
  const auto own = [&] {
    return std::any_of(threads_.begin(), threads_.end(), [](const std::thread& one) { return one.get_id() == std::this_thread::get_id(); });
  };
  Connection connection(socket, limits_);
  std::list<Connection*>::iterator place;
  bool answers;
  {
    std::lock_guard lock(mutex_);
    answers = !closing_ && own();
    place = open_.insert(open_.end(), &connection);  // the oldest come first
  }
  if (answers) {
    answer(connection);
    connection.drain();
  }
  std::lock_guard lock(mutex_);
  open_.erase(place);
  ::close(socket);  // within the lock: nobody cuts a number that is another's by now
  return answers;
}

}  // namespace tandem::net
