// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/backend/python_workers.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/json_depth.h"
#include "tandem/base/log.h"
#include "tandem/reward/backend/scripts.h"

namespace tandem::reward {

using nlohmann::json;

namespace {

constexpr double kEndPatienceS = 0.5;          // for a worker to end by itself, its exit handlers included
constexpr size_t kLogBytesPerBatch = 64 << 10; // of what a function prints
constexpr size_t kMaxReplyBytes = size_t{1} << 26;

constexpr size_t kMostNames = 40;   // of columns that an error lists

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// A function may write to the worker's channel: a reply may hold anything.
std::string text_in(const json& reply, const char* name) {
  return reply.contains(name) && reply[name].is_string() ? reply[name].get<std::string>() : std::string();
}

std::string names_in(const json& reply, const char* name) {
  std::string text;
  size_t count = 0;
  if (reply.contains(name) && reply[name].is_array())
    for (const json& one : reply[name]) {
      if (!one.is_string()) continue;
      if (++count > kMostNames) return text + ", ...";
      text += (text.empty() ? "" : ", ") + one.get<std::string>();
    }
  return text;
}

}  // namespace

void PythonWorker::adopt(Process process, Descriptor channel, Descriptor log) {
  std::lock_guard lock(mutex_);
  process_ = std::move(process);
  channel_ = std::move(channel);
  log_ = std::move(log);
  never_block(channel_);
  never_block(log_);
}

int PythonWorker::end(double patience_s) {
  channel_.close();  // the worker's sign to end
  std::lock_guard lock(mutex_);
  const int status = process_.wait_or_end(patience_s);
  take_log();
  log_lines(true);
  log_.close();
  return status;
}

void PythonWorker::stop() {
  std::lock_guard lock(mutex_);
  process_.stop();
}

void PythonWorker::lose(const std::string& why) {
  const int status = end(why.empty() ? kEndPatienceS : 0);
  throw Lost{why.empty() ? "it ended with " + status_text(status) : why};
}

// Takes what the process has printed, without waiting for more.
void PythonWorker::take_log() {
  char buffer[1 << 14];
  while (log_.is_open()) {
    const ssize_t got = read(log_.number(), buffer, sizeof buffer);
    if (got < 0 && would_block()) break;
    if (got <= 0) {
      log_.close();
      break;
    }
    const size_t room = kLogBytesPerBatch - std::min(kLogBytesPerBatch, logged_bytes_);
    log_text_.append(buffer, std::min(room, static_cast<size_t>(got)));
    logged_bytes_ += static_cast<size_t>(got);
  }
  log_lines(false);
}

void PythonWorker::log_lines(bool all) {
  size_t begin = 0;
  for (size_t end; (end = log_text_.find('\n', begin)) != std::string::npos; begin = end + 1)
    log::info(name_, ": ", log_text_.substr(begin, end - begin));
  log_text_.erase(0, begin);
  if (!all) return;
  if (!log_text_.empty()) log::info(name_, ": ", log_text_);
  if (logged_bytes_ > kLogBytesPerBatch)
    log::warning(name_, ": ", logged_bytes_ - kLogBytesPerBatch, " bytes of its output are left out");
  log_text_.clear();
  logged_bytes_ = 0;
}

// Waits for the channel, taking what is printed meanwhile. False once the time is over.
bool PythonWorker::wait(bool to_send, const Deadline& deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.time() - Clock::now()).count();
    if (left <= 0) return false;
    pollfd fds[] = {{channel_.number(), static_cast<short>(to_send ? POLLOUT : POLLIN), 0}, {log_.number(), POLLIN, 0}};
    poll(fds, 2, static_cast<int>(std::min<int64_t>(left, 1000)));
    if (fds[1].revents) take_log();
    if (fds[0].revents) return true;
  }
}

void PythonWorker::send_all(const std::string& bytes, const Deadline& deadline) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t sent = send(channel_.number(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (sent > 0) at += static_cast<size_t>(sent);
    else if (!would_block()) lose("");
    else if (!wait(true, deadline)) lose("it took no more input in time");
  }
}

std::string PythonWorker::receive(size_t size, const Deadline& deadline) {
  std::string bytes;  // grows as they come: the size is what a process of others says
  while (bytes.size() < size) {
    char part[1 << 16];
    const ssize_t got = recv(channel_.number(), part, std::min(sizeof part, size - bytes.size()), 0);
    if (got > 0) bytes.append(part, static_cast<size_t>(got));
    else if (got == 0 || !would_block()) lose("");
    else if (!wait(false, deadline)) lose("it gave no answer in time");
  }
  return bytes;
}

json PythonWorker::exchange(const std::string& message, double timeout_s) {
  const Deadline deadline = Deadline::after_s(timeout_s);
  uint64_t size = message.size();
  send_all(std::string(reinterpret_cast<const char*>(&size), sizeof size) + message, deadline);
  const std::string head = receive(sizeof size, deadline);
  std::memcpy(&size, head.data(), sizeof size);
  if (size > kMaxReplyBytes) lose("its answer is no message");
  json reply = parse_or_discard<json>(receive(size, deadline));
  if (!reply.is_object()) lose("its answer is no message");
  take_log();
  log_lines(true);
  return reply;
}

PythonWorkers::PythonWorkers(PythonFunction function, WorkerOptions options)
    : function_(std::move(function)), options_(std::move(options)), starter_([this] { start_processes(); }) {
  for (int64_t i = 0; i < options_.num_workers; ++i) {
    workers_.push_back(std::make_unique<PythonWorker>(function_.name + " worker " + std::to_string(i)));
    free_.insert(free_.begin(), workers_.back().get());  // the first is taken first
  }
  try {
    start(*workers_.front(), options_.start_timeout_s);
  } catch (const PythonWorker::Lost& lost) {
    shut();
    throw UserError(function_.name, "does not load: " + lost.why, "see the lines above");
  } catch (...) {
    shut();
    throw;
  }
}

PythonWorkers::~PythonWorkers() { shut(); }

void PythonWorkers::shut() {
  for (auto& worker : workers_) worker->end(worker->running() ? kEndPatienceS : 0);
  locked(mutex_, [&] { closing_ = true; });
  wanted_.notify_all();
  if (starter_.joinable()) starter_.join();
}

void PythonWorkers::start_processes() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wanted_.wait(lock, [&] { return closing_ || !to_start_.empty(); });
    if (to_start_.empty()) return;
    std::packaged_task<Process()> task = std::move(to_start_.front());
    to_start_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

Process PythonWorkers::start_process(const Launch& launch) {
  std::packaged_task<Process()> task([&launch] { return Process(launch); });
  std::future<Process> started = task.get_future();
  locked(mutex_, [&] { to_start_.push_back(std::move(task)); });
  wanted_.notify_one();
  return started.get();
}

void PythonWorkers::start(PythonWorker& worker, double timeout_s) {
  auto [ours, theirs] = socket_pair();
  auto [log_reader, log_writer] = pipe_pair();
  Launch launch;
  launch.argv = {options_.executable, "-u", "-c", std::string(script("worker.py"))};
  launch.env = {"PYTHONHASHSEED=0"};
  launch.inherit_env = true;
  launch.fds = {-1, log_writer.number(), log_writer.number(), theirs.number()};
  launch.keeps_orphans = true;
  try {
    worker.adopt(start_process(launch), std::move(ours), std::move(log_reader));
  } catch (const UserError& e) {
    throw UserError("reward.python_executable", e.what(), "expected a Python 3.8 or newer that has what the function imports");
  }
  theirs.close();
  log_writer.close();
  const json wanted = {
      {"name", function_.name}, {"file", function_.file}, {"source", function_.source}, {"function", function_.function},
      {"memory_bytes", options_.memory_bytes}, {"is_environment", function_.is_environment}};
  const json reply = worker.exchange(wanted.dump(-1, ' ', false, json::error_handler_t::replace), timeout_s);
  if (!reply.contains("ready")) worker.end();
  checked(reply);
}

json PythonWorkers::checked(json reply) {
  if (!reply.contains("error")) return reply;
  const std::string traceback = text_in(reply, "traceback"), which = text_in(reply, "which");
  options_.notices->say(function_.name + " " + text_in(reply, "kind"), function_.name + ": " + traceback);
  const std::string what = text_in(reply, "error") + (which.empty() ? "" : ", " + which);
  std::string remedy = traceback.starts_with("Traceback") ? "the traceback stands above" : "docs/rewards.md";
  const std::string arguments = names_in(reply, "arguments"), columns = names_in(reply, "columns");
  if (!arguments.empty())
    remedy = join_text("a function may take ", arguments, columns.empty() ? "" : ", and the columns of the data set: ", columns, "; ",
                       remedy);
  throw UserError(function_.name, what, remedy);
}

// Whoever has it has a time for that.
PythonWorkers::Loan PythonWorkers::borrow(PythonWorker* wanted) {
  std::unique_lock lock(mutex_);
  auto found = free_.end();
  freed_.wait(lock, [&] {
    found = wanted ? std::ranges::find(free_, wanted) : free_.empty() ? free_.end() : std::prev(free_.end());
    return found != free_.end();
  });
  PythonWorker* const worker = *found;
  free_.erase(found);
  return {worker, [this](PythonWorker* back) {
            locked(mutex_, [&] { free_.push_back(back); });
            freed_.notify_all();
          }};
}

json PythonWorkers::call(const std::string& batch) {
  const Loan worker = borrow(nullptr);
  const int64_t abandoned = locked(mutex_, [&] { return num_abandoned_; });
  for (int64_t attempt = 0;; ++attempt) {
    try {
      if (!worker->running()) start(*worker, options_.start_timeout_s);
      return checked(worker->exchange(batch, options_.timeout_s));
    } catch (const PythonWorker::Lost& lost) {
      std::lock_guard lock(mutex_);
      if (abandoned != num_abandoned_) throw UserError(function_.name, "the batch was given up", "the run is ending");
      if (attempt == options_.retries)
        throw UserError(function_.name, "its worker failed " + std::to_string(attempt + 1) + " times with one batch: " + lost.why,
                        "the lines above say more; reward.timeout_s is how long a batch may take");
      log::warning(function_.name, ": ", lost.why, "; started again");
    }
  }
}

json PythonWorkers::tell(int64_t which, const std::string& message, double timeout_s, double& waited_s) {
  const double begin_s = now_s();
  const Loan worker = borrow(workers_.at(static_cast<size_t>(which)).get());
  try {
    if (!worker->running()) start(*worker, options_.start_timeout_s);
    waited_s += now_s() - begin_s;
    return checked(worker->exchange(message, timeout_s));
  } catch (const PythonWorker::Lost& lost) {
    throw PeerError(join_text(function_.name, ": ", lost.why));
  }
}

void PythonWorkers::abandon() {
  std::lock_guard lock(mutex_);
  ++num_abandoned_;
  for (auto& worker : workers_)
    if (std::find(free_.begin(), free_.end(), worker.get()) == free_.end()) worker->stop();
}

}  // namespace tandem::reward
