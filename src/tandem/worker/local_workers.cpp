// SPDX-License-Identifier: Apache-2.0
#include "tandem/worker/local_workers.h"

#include <fcntl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/log.h"
#include "tandem/device/process.h"

namespace tandem::worker {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostEnds = 6;                      // for each worker, while no group is finished
constexpr double kFirstPauseS = 0.5, kMostPauseS = 30;
constexpr double kLongS = 60;                         // who lived for so long is started again at once

bool has_ended(pid_t process) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == process;
}

// Of a file; "" if there is none.
std::string last_line(const std::string& path) {
  constexpr int64_t kMost = 4096;
  try {
    const RegularFile file(path);
    std::string end(static_cast<size_t>(kMost), '\0');
    end.resize(static_cast<size_t>(file.read(std::max<int64_t>(0, file.size_bytes() - kMost), end)));
    while (!end.empty() && end.back() == '\n') end.pop_back();
    return end.substr(end.rfind('\n') + 1);
  } catch (const UserError&) {
    return "";
  }
}

}  // namespace

LocalWorkers::LocalWorkers(const config::RunConfig& config, std::string address)
    : config_(config), address_(std::move(address)) {
  places_.resize(static_cast<size_t>(config_.workers.local));
  for (size_t i = 0; i < places_.size(); ++i) start(i);
}

std::string LocalWorkers::log_of(size_t number) const { return join_text(config_.run.dir, "/workers/", number, ".log"); }

void LocalWorkers::start(size_t number) {
  Place& place = places_[number];
  place.process = process(number);
  place.started_s = now_s();
  place.has_ended = false;
}

reward::Process LocalWorkers::process(size_t number) const {
  const fs::path self = fs::read_symlink("/proc/self/exe");
  const int64_t cores = config_.parallel.threads > 0 ? config_.parallel.threads : device::num_cores();
  reward::Launch launch;
  launch.argv = {self.string()};
  if (self.filename() != "tandem") launch.argv.insert(launch.argv.end(), {"-m", "tandem"});  // a host in Python
  launch.argv.insert(launch.argv.end(), {"rollout", "--join", address_, "--token", config_.run.dir + "/token", "--threads",
                                         std::to_string(std::max<int64_t>(1, cores / config_.workers.local))});
  launch.inherit_env = true;
  const std::string log = log_of(number);
  fs::create_directories(fs::path(log).parent_path());
  const Descriptor out(::open(log.c_str(), O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0644));
  if (!out.is_open()) throw UserError(log, "cannot be written", "a run folder with room");
  launch.fds = {-1, out.number(), out.number()};
  return reward::Process(launch);
}

void LocalWorkers::check(int64_t num_finished) {
  if (num_finished != std::exchange(num_finished_, num_finished)) num_ends_ = 0;
  const double now = now_s();
  for (size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    if (place.has_ended) {
      if (now < place.next_start_s) continue;
      start(i);
    }
    if (!has_ended(place.process.id())) continue;
    const std::string how = reward::status_text(place.process.end());
    if (++num_ends_ > kMostEnds * std::ssize(places_))
      throw PeerError(join_text("workers of this run ended ", num_ends_, " times, and no group was finished meanwhile; the last with ", how,
                                "; ", log_of(i), " ends with: ", last_line(log_of(i))));
    place.num_ends = now - place.started_s > kLongS ? 1 : place.num_ends + 1;
    const double pause_s =
        place.num_ends == 1 ? 0 : std::min(kMostPauseS, kFirstPauseS * std::exp2(static_cast<double>(place.num_ends - 2)));
    log::warning("worker ", i, " of this run ended with ", how, ": it is started again",
                 pause_s > 0 ? join_text(" in ", pause_s, " s") : std::string(), " (", log_of(i), ')');
    place.has_ended = true;
    place.next_start_s = now + pause_s;
  }
}

void LocalWorkers::wait_ended(double seconds) {
  const double end_s = now_s() + seconds;
  for (Place& place : places_)
    if (!place.has_ended) (void)place.process.wait_or_end(std::max(0.0, end_s - now_s()));
}

}  // namespace tandem::worker
