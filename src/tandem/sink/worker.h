// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one Python process of a run that hands its steps to experiment trackers. Rank 0 of a run has it, if the recipe names sinks.

#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>

#include "tandem/base/asset.h"
#include "tandem/base/clock.h"
#include "tandem/reward/backend/process.h"
#include "tandem/sink/options.h"

namespace tandem::sink {

/// The Python sources of sink/backend, compiled in by cmake/embed.cmake.
std::span<const Asset> assets();

/// What the worker is told.
struct Job {
  Options options;
  std::string run_dir;    ///< metrics.jsonl there is followed; summary.json is read at a finished end
  nlohmann::json recipe;  ///< the resolved recipe, {section: {option: value}}: the configuration of the run at each sink
};

/// How a run ended; trackers show it.
enum class End { kFinished, kStopped, kFailed };

/// Follows RUN_DIR/metrics.jsonl and hands its lines on. Nothing of the run waits for it but end().
///
/// Ownership  its process, and the thread that starts it, starts it again where it dies, and writes its words to the log.
/// Threads    one.
/// Blocking   the constructor never; end() and the destructor at most the seconds of Options::end_wait_s.
/// Errors     none after construction: a sink that fails, hangs or dies costs one warning, and what it lacks is sent by a resume.
/// Read next  backend/worker.py (the process), docs/design/sinks.md (why it follows a file).
class Worker {
 public:
  explicit Worker(Job job);
  /// As end(End::kFailed), unless it has ended.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Lets the sinks take what is in the file, then ends the process, at the deadline by force. Idempotent.
  void end(End how);

 private:
  enum class Left { kDone, kLate, kDied };  // how a process ended
  void supervise() noexcept;
  Left run_process();
  Left follow(reward::Process& process, Descriptor channel);
  bool read_reports(const Descriptor& channel, std::string& text);
  void report(const std::string& line);
  void warn_once(const std::string& sink, const std::string& text);
  double patience_s() const;
  std::string unfinished() const;

  Job job_;
  Descriptor wake_reader_, wake_writer_;  // a byte once the run ends
  std::atomic<bool> ending_ = false;
  End how_ = End::kFailed;      // this and the next are written before ending_
  std::optional<Deadline> deadline_;  // of the end
  std::string died_;            // why the last process did
  bool over_ = false;           // of the process: every sink is done
  std::set<std::string> done_;  // sinks
  std::set<std::string> warned_;
  std::thread thread_;
};

/// Finds out whether Python has the packages of the sinks. Blocking: a minute at most.
/// Errors: UserError naming those that are missing and what installs them, or the Python that cannot be started.
void require_packages(const Options& options);

}  // namespace tandem::sink
