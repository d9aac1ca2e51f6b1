// SPDX-License-Identifier: Apache-2.0
#pragma once
// Persistent Python processes that score batches with one function.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tandem/base/clock.h"
#include "tandem/monitor/notices.h"
#include "tandem/reward/backend/process.h"

namespace tandem::reward {

/// What the workers load: a function of a file, or of source of our own.
struct PythonFunction {
  std::string name;        ///< for errors: "reward.python rules.py:score"
  std::string file;
  std::string source;
  std::string function;
  bool is_environment = false;  ///< a class with `reset` and `step`, for tell()
};

struct WorkerOptions {
  std::string executable = "python3";
  int64_t num_workers = 1;
  double timeout_s = 60;        ///< for one batch
  double start_timeout_s = 300; ///< for imports
  int64_t retries = 1;          ///< of a batch whose worker died or hung
  int64_t memory_bytes = 0;     ///< of data that a process may have, shared memory apart; 0: no limit
  std::shared_ptr<monitor::Notices> notices = std::make_shared<monitor::Notices>();  ///< as BatchOptions have it
};

/// One process. Threads: one at a time, except stop().
class PythonWorker {
 public:
  /// Why an exchange has no reply: the process died or the time is over.
  struct Lost {
    std::string why;
  };
  explicit PythonWorker(const std::string& name) : name_(name) {}

  bool running() const { return channel_.is_open(); }
  void adopt(Process process, Descriptor channel, Descriptor log);
  /// Sends one message, of JSON, and waits for its reply. What the process prints meanwhile goes to the log. Throws Lost.
  nlohmann::json exchange(const std::string& message, double timeout_s);
  /// Ends the process: at once, or after a moment in which it may end by itself. Returns its status.
  int end(double patience_s = 0);
  /// Kills the process under an exchange, which then throws Lost. Threads: any.
  void stop();

 private:
  bool wait(bool to_send, const Deadline& deadline);
  void send_all(const std::string& bytes, const Deadline& deadline);
  std::string receive(size_t size, const Deadline& deadline);
  [[noreturn]] void lose(const std::string& why);
  void take_log();
  void log_lines(bool all);

  std::string name_;
  std::mutex mutex_;    // of process_, which stop() reads
  Process process_;
  Descriptor channel_, log_;
  std::string log_text_;
  size_t logged_bytes_ = 0;
};

/// Ownership  its processes, all that these start, and the thread that starts them: they end with it, and with this process however
///            that ends.
/// Threads    call() from any number of threads; as many batches run at once as there are workers.
/// Blocking   call() waits for a free worker, then at most (1 + retries) * (start_timeout_s + timeout_s).
/// Errors     UserError with the place in the user's file, for how many answers, and what the function could have asked for. Before it
///            the traceback goes to the log, once for each kind of error and place, whichever worker has it. A worker that dies or
///            hangs is replaced, and its batch tried again `retries` times; then a UserError says so.
class PythonWorkers {
 public:
  /// Starts one worker, so that a file that does not load is found now. The others start when they are needed.
  PythonWorkers(PythonFunction function, WorkerOptions options);
  ~PythonWorkers();
  PythonWorkers(const PythonWorkers&) = delete;
  PythonWorkers& operator=(const PythonWorkers&) = delete;

  nlohmann::json call(const std::string& batch);
  /// To worker `which`, below num_workers: of an environment, whose workers are not alike. `waited_s` grows by the time until it was there
  /// and free. Blocking: that time, and then `timeout_s`. Errors: as call(), without a second try; PeerError if there is no reply in time.
  /// The worker has ended then.
  nlohmann::json tell(int64_t which, const std::string& message, double timeout_s, double& waited_s);
  bool is_running(int64_t which) const { return workers_.at(static_cast<size_t>(which))->running(); }
  /// Ends the calls in progress, which throw; later ones work.
  void abandon();

 private:
  void shut();
  using Loan = std::unique_ptr<PythonWorker, std::function<void(PythonWorker*)>>;  // which gives it back
  Loan borrow(PythonWorker* wanted);                                              // nullptr: any
  void start(PythonWorker& worker, double timeout_s);
  Process start_process(const Launch& launch);
  void start_processes();
  nlohmann::json checked(nlohmann::json reply);

  PythonFunction function_;
  WorkerOptions options_;
  std::mutex mutex_;
  std::condition_variable freed_, wanted_;
  std::vector<std::unique_ptr<PythonWorker>> workers_;
  std::vector<PythonWorker*> free_;
  int64_t num_abandoned_ = 0;                            // calls of abandon()
  // A process lives no longer than the thread that started it; so one thread of ours starts them all.
  std::deque<std::packaged_task<Process()>> to_start_;
  bool closing_ = false;
  std::thread starter_;
};

}  // namespace tandem::reward
