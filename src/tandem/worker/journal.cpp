// SPDX-License-Identifier: Apache-2.0
#include "tandem/worker/journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/log.h"

namespace tandem::worker {
namespace {

namespace fs = std::filesystem;

constexpr double kMostWaitS = 300;
constexpr double kGatherS = 0.01;  // for which the disk is not asked where nobody waits for it: each time costs the processor

std::string line_of(const queue::Decision& decision) {
  using What = queue::Decision::What;
  const auto group = [&](const char* what) { return join_text("{\"", what, "\":", value(decision.group)); };
  const std::string lease = join_text(",\"lease\":", value(decision.lease));
  switch (decision.what) {
    case What::kLeased:
      return join_text(group("leased"), lease, ",\"worker\":", value(decision.worker), ",\"version\":", value(decision.version), "}\n");
    case What::kEnded: return group("ended") + lease + "}\n";
    case What::kFinished: return group("finished") + lease + "}\n";
    case What::kLost: return group("lost") + "}\n";
    case What::kDropped: return group("dropped") + "}\n";
    case What::kFiltered: return group("filtered") + "}\n";
    case What::kTaken: return join_text(group("taken"), ",\"step\":", value(decision.step), "}\n");
    case What::kGivenBack: return "{\"given_back\":true}\n";
    case What::kCommitted:
      return join_text("{\"committed\":", value(decision.step), ",\"version\":", value(decision.version), "}\n");
  }
  return "";
}

// Its whole lines; "" if there is no file.
std::string lines_of(const std::string& path) {
  if (!fs::exists(path)) return "";
  std::string text = RegularFile(path).read_whole();
  text.resize(text.rfind('\n') + 1);  // to nothing, if there is none
  return text;
}

// What one line does to the count of what comes after a state of `version`.
void count_line(const nlohmann::json& line, data::PolicyVersion version, Undone& undone, std::set<int64_t>& open) {
  const auto is_state = [&](const char* what) { return line.contains(what) && line.value("version", int64_t{-1}) == value(version); };
  if (line.contains("opened")) open.clear();
  if (is_state("opened") || is_state("saved")) undone = {};
  if (line.contains("leased")) open.insert(line.at("leased").get<int64_t>());
  for (const char* const over : {"ended", "finished", "dropped", "filtered"})
    if (line.contains(over)) open.erase(line.at(over).get<int64_t>());
  undone.finished += line.contains("finished");
  undone.updates += line.contains("committed");
}

}  // namespace

Undone undone_since(const std::string& path, data::PolicyVersion version) {
  Undone undone;
  std::set<int64_t> open;
  for (const std::string& each : {path + ".old", path}) {
    std::istringstream lines(lines_of(each));
    std::string text;
    for (int64_t number = 1; std::getline(lines, text); ++number) {
      const nlohmann::json line = nlohmann::json::parse(text, nullptr, false);
      if (line.is_object()) count_line(line, version, undone, open);
      else log::warning(each, ", line ", number, ": none of a journal; what it said of the start before is not counted");
    }
  }
  undone.leases = std::ssize(open);
  return undone;
}

Journal::Journal(std::string path, queue::Incarnation incarnation, data::PolicyVersion version, int64_t most_bytes)
    : path_(std::move(path)),
      most_bytes_(most_bytes),
      undone_(undone_since(path_, version)) {
  if (fs::exists(path_)) fs::resize_file(path_, lines_of(path_).size());
  open_file();
  add_line(join_text("{\"opened\":", value(incarnation), ",\"version\":", value(version), "}\n"));
  writer_ = std::thread([this] { write_all(); });
}

Journal::~Journal() {
  locked(mutex_, [&] { is_closing_ = true; });
  changed_.notify_all();
  writer_.join();
  if (file_ >= 0) ::close(file_);
}

void Journal::open_file() {
  if (file_ >= 0) ::close(file_);
  file_ = ::open(path_.c_str(), O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0644);
  struct stat found{};
  if (file_ < 0 || ::fstat(file_, &found) != 0) throw UserError(path_, std::strerror(errno), "a run folder that can be written");
  num_bytes_ = found.st_size;
}

void Journal::add_line(const std::string& line) {
  const bool is_first = locked(mutex_, [&] {
    ++num_added_;
    waiting_ += line;
    return waiting_.size() == line.size();
  });
  if (is_first) changed_.notify_all();
}

void Journal::add(const queue::Decision& decision) { add_line(line_of(decision)); }

void Journal::add_saved(data::PolicyVersion version) { add_line(join_text("{\"saved\":true,\"version\":", value(version), "}\n")); }

void Journal::wait_written() {
  std::unique_lock lock(mutex_);
  const int64_t last = num_added_;
  ++num_waiting_;
  changed_.notify_all();
  const bool is_over = changed_.wait_for(lock, duration_of_s(kMostWaitS), [&] { return num_written_ >= last || !fault_.empty(); });
  --num_waiting_;
  if (!is_over) throw PeerError(join_text(path_, ": nothing was written for ", kMostWaitS, " s"));
  if (!fault_.empty()) throw UserError(path_, fault_, "a disk with room, and the run goes on from its last checkpoint");
}

int64_t Journal::num_syncs() const {
  std::lock_guard lock(mutex_);
  return num_syncs_;
}

void Journal::write_out(const std::string& lines) {
  if (num_bytes_ > most_bytes_) {
    fs::rename(path_, path_ + ".old");
    open_file();
  }
  for (size_t done = 0; done < lines.size();) {
    const ssize_t wrote = ::write(file_, lines.data() + done, lines.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) throw UserError(path_, std::strerror(errno), "");
    done += static_cast<size_t>(wrote);
  }
  num_bytes_ += std::ssize(lines);
  if (::fdatasync(file_) != 0 && errno != EINVAL) throw UserError(path_, std::strerror(errno), "");  // EINVAL: it is no file of a disk
}

// On a thread of its own: while the disk keeps what came, more comes. It gathers for a moment where nobody waits.
void Journal::write_all() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_closing_ || !waiting_.empty(); });
    if (waiting_.empty() || !fault_.empty()) return;
    changed_.wait_for(lock, duration_of_s(kGatherS), [&] { return is_closing_ || num_waiting_ > 0; });
    const std::string lines = std::exchange(waiting_, {});
    const int64_t last = num_added_;
    lock.unlock();
    std::string fault;
    try {
      write_out(lines);
    } catch (const std::exception& e) {
      fault = e.what();
    }
    lock.lock();
    num_written_ = last;
    ++num_syncs_;
    fault_ = fault;
    changed_.notify_all();
  }
}

}  // namespace tandem::worker
