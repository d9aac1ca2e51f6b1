// SPDX-License-Identifier: Apache-2.0
#include "tandem/sink/worker.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/json_depth.h"
#include "tandem/base/log.h"
#include "tandem/reward/backend/scripts.h"

namespace tandem::sink {

using nlohmann::json;

namespace {

constexpr double kStoppedWaitS = 5;      // of a run that somebody stopped, or that failed
constexpr double kLookS = 60;            // for Python to say which packages it has
constexpr double kQuietWaitS = 1;        // then a person hears what the end waits for
constexpr double kReapWaitS = 1;         // for a process that has closed its end, to end itself
constexpr double kRestartPauseS[] = {1, 10, 60};
constexpr size_t kMaxReportBytes = 1 << 16;

std::string_view source(std::string_view name) {
  for (const Asset& asset : assets())
    if (asset.name == name) return asset.bytes;
  TANDEM_CHECK(false, "no script ", name);
}

// The name that installs a sink.
std::string wheel_of(const std::string& sink) {
  return sink == "mlflow" ? "mlflow-skinny" : sink == "swanlab" ? "'swanlab[dashboard]'" : sink;
}

const char* word_of(End how) { return how == End::kFinished ? "finished\n" : how == End::kStopped ? "stopped\n" : "failed\n"; }

std::string text_in(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

json json_of(const Job& job) {
  const Options& o = job.options;
  const std::string run_dir = std::filesystem::absolute(job.run_dir).lexically_normal().string();
  return {{"sinks", o.sinks}, {"run_dir", run_dir},   {"project", o.project}, {"run_name", o.run_name},
          {"group", o.group}, {"recipe", job.recipe}, {"mlflow_tracking_uri", o.mlflow_tracking_uri}};
}

}  // namespace

Worker::Worker(Job job) : job_(std::move(job)) {
  std::tie(wake_reader_, wake_writer_) = reward::pipe_pair();
  thread_ = std::thread([this] { supervise(); });
}

Worker::~Worker() { end(End::kFailed); }

void Worker::end(End how) {
  if (!thread_.joinable()) return;
  how_ = how;
  deadline_ = Deadline::after_s(patience_s());
  ending_ = true;
  wake_writer_.close();  // its reader is ready from now on
  thread_.join();
}

double Worker::patience_s() const {
  return how_ == End::kFinished ? job_.options.end_wait_s : std::min(job_.options.end_wait_s, kStoppedWaitS);
}

// A process lives no longer than the thread that started it (reward/backend/process.h): so this thread stays until the end.
void Worker::supervise() noexcept {
  try {
    for (const double pause_s : kRestartPauseS) {
      const Left left = run_process();
      if (left != Left::kDied) return;
      warn_once("", "the process of the sinks ended with " + died_ + "; it is started again (sinks.log has its words)");
      pollfd end{wake_reader_.number(), POLLIN, 0};
      (void)poll(&end, 1, static_cast<int>(pause_s * 1000));
    }
    if (run_process() == Left::kDied) log::info("monitor.sinks: the process ends again and again; --resume sends what is missing");
  } catch (const std::exception& e) {
    warn_once("", std::string(e.what()) + "; the run goes on without it");
  }
}

Worker::Left Worker::run_process() {
  auto [ours, theirs] = reward::socket_pair();
  const Descriptor job = reward::bytes_to_read(json_of(job_).dump(-1, ' ', false, json::error_handler_t::replace));
  const std::string log_path = job_.run_dir + "/sinks.log";
  const Descriptor log(::open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  reward::Launch launch;
  launch.argv = {reward::package_python(job_.options.python_executable), "-u", "-c", std::string(source("worker.py"))};
  launch.inherit_env = true;
  launch.fds = {job.number(), log.number(), log.number(), theirs.number()};
  reward::Process process(launch);
  theirs.close();
  reward::never_block(ours);
  return follow(process, std::move(ours));
}

Worker::Left Worker::follow(reward::Process& process, Descriptor channel) {
  std::string text;
  bool told = false, waits_quietly = true;
  over_ = false;
  done_.clear();
  for (bool open = true; open && !over_;) {
    if (ending_ && !told) {
      const char* word = word_of(how_);
      told = ::send(channel.number(), word, std::strlen(word), MSG_NOSIGNAL) > 0;  // the buffer is empty: it has room
    }
    if (ending_ && deadline_->passed()) break;
    const double still_s = ending_ ? deadline_->left_s() : kQuietWaitS;
    if (ending_ && waits_quietly && patience_s() - still_s > kQuietWaitS) {
      log::info("monitor.sinks: waiting for ", unfinished(), ", at most ", patience_s(), " s");
      waits_quietly = false;
    }
    pollfd fds[] = {{channel.number(), POLLIN, 0}, {ending_ ? -1 : wake_reader_.number(), POLLIN, 0}};
    poll(fds, 2, 1 + std::max(0, static_cast<int>(1000 * std::min(still_s, kQuietWaitS))));
    if (fds[0].revents) open = read_reports(channel, text);
  }
  if (over_) {
    process.wait_or_end(ending_ ? deadline_->left_s() : kReapWaitS);
    if (const std::string names = unfinished(); !names.empty())
      log::info("monitor.sinks: ", names, " has not taken everything; --resume sends the rest");
    return Left::kDone;
  }
  if (ending_ && deadline_->passed()) {
    const std::string words =
        join_text("has not taken everything within ", patience_s(), " s (monitor.end_wait_s); --resume sends the rest");
    for (const std::string& sink : job_.options.sinks)
      if (!done_.contains(sink)) warn_once(sink, words);
    process.end();
    return Left::kLate;
  }
  died_ = reward::status_text(process.wait_or_end(kReapWaitS));
  return Left::kDied;
}

// Takes what the process has said. False once it has closed its end.
bool Worker::read_reports(const Descriptor& channel, std::string& text) {
  char part[1 << 12];
  for (;;) {
    const ssize_t got = ::recv(channel.number(), part, sizeof part, 0);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) break;
    if (got <= 0) return false;
    text.append(part, static_cast<size_t>(got));
    size_t begin = 0;
    for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) report(text.substr(begin, end - begin));
    text.erase(0, begin);
    if (text.size() > kMaxReportBytes) text.clear();  // none of ours
  }
  return true;
}

// A package may write to the channel: a line may be anything.
void Worker::report(const std::string& line) {
  const json said = parse_or_discard<json>(line);
  if (!said.is_object()) return;
  const std::string sink = text_in(said, "sink"), what = text_in(said, "what"), text = text_in(said, "text");
  if (what == "over") over_ = true;
  else if (what == "done") done_.insert(sink);
  else if (what == "warning") warn_once(sink, text);
  else if (what == "info") log::info(sink, ": ", text);
}

void Worker::warn_once(const std::string& sink, const std::string& text) {
  const std::string where = "monitor.sinks" + (sink.empty() ? "" : " " + sink);
  if (warned_.insert(sink).second) log::warning(where, ": ", text);
  else log::info(where, ": ", text);
}

std::string Worker::unfinished() const {
  std::string names;
  for (const std::string& sink : job_.options.sinks)
    if (!done_.contains(sink)) names += (names.empty() ? "" : ", ") + sink;
  return names;
}

namespace {

// Standard output of the script that looks for packages. Errors: UserError if Python cannot be started or says nothing in time.
std::string look_for(const std::vector<std::string>& packages, const std::string& python) {
  auto [reader, writer] = reward::pipe_pair();
  reward::Launch launch;
  launch.argv = {python, "-c", std::string(source("packages.py"))};
  launch.argv.insert(launch.argv.end(), packages.begin(), packages.end());
  launch.inherit_env = true;
  launch.fds = {-1, writer.number(), -1};
  reward::Process process;
  try {
    process = reward::Process(launch);
  } catch (const UserError& e) {
    throw UserError("monitor.python_executable", e.what(), "a Python that has the packages of monitor.sinks");
  }
  writer.close();
  std::string said = reward::read_all(reader, kLookS);
  const int status = process.wait_or_end(kReapWaitS);
  if (status != 0)
    throw UserError("monitor.python_executable",
                    python + " does not say which packages it has: it ended with " + reward::status_text(status),
                    "a Python 3.8 or newer that has the packages of monitor.sinks");
  return said;
}

}  // namespace

void require_packages(const Options& options) {
  if (options.sinks.empty()) return;
  const std::string python = reward::package_python(options.python_executable);
  std::istringstream missing(look_for(options.sinks, python));
  std::string names, wheels;
  for (std::string name; missing >> name;) {
    names += (names.empty() ? "" : ", ") + name;
    wheels += " " + wheel_of(name);
  }
  if (names.empty()) return;
  const bool several = names.find(',') != std::string::npos;
  throw UserError("monitor.sinks", python + " has no package " + names,
                  "`scripts/setup" + wheels + "`, or monitor.python_executable: a Python that has " + (several ? "them" : "it"));
}

}  // namespace tandem::sink
