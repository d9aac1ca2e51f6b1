// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a person sees while a run goes on: in a terminal what happens at this moment, a line per step, and at the end the table.

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tandem/data/sample_store.h"
#include "tandem/monitor/recorder.h"
#include "tandem/runtime/folder/run_folder.h"

namespace tandem::runtime {

/// The last line of a terminal: "step 3/400  rollout  128/512 samples  3412 tokens  1.2 s  left 2m10s".
///
/// Ownership  owns the thread that draws it; without base/log.h:shows_live there is none, and all does nothing.
/// Threads    any.
class LiveLine {
 public:
  LiveLine();
  ~LiveLine();
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  /// What begins now. `num_samples`: how many it is to have; 0: it counts none.
  void stage(const std::string& what, int64_t num_samples = 0);
  /// What the stage has by now; tokens are those that this rank drew.
  void count(int64_t samples, int64_t tokens);
  /// How long the run takes from now on, as far as one knows.
  void left(double seconds);

 private:
  void draw();
  std::string text() const;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  bool drawn_ = false;  // the stage, at least once
  std::string what_;
  int64_t num_samples_ = 0, samples_ = 0, tokens_ = 0;
  double begin_s_ = 0, end_s_ = 0;  // of the stage; of the run, 0: unknown
  std::thread thread_;
};

/// One line per step with progress and the time left, from the time between the last steps: evaluations and checkpoints count.
class Progress {
 public:
  Progress(int64_t total_steps, int64_t groups_per_step) : total_steps_(total_steps), groups_per_step_(groups_per_step) {}
  /// A step of so many seconds is done; it counts in the time left.
  void done(int64_t step, double seconds);
  /// The line of a step that is done.
  void line(const monitor::Metrics& metrics) const;
  /// Seconds until the last step; 0 before the first is done.
  double left_s() const { return pace_s_ * static_cast<double>(total_steps_ - last_step_); }
  /// Warns of a step whose groups have no signal, the first time; the table at the end names them all. `is_scored`: the reward applied
  /// to one of its answers at least.
  void without_signal(int64_t step, bool is_scored);
  /// "3, 5 to 9": all such steps since the start; "" if there was none.
  std::string steps_without_signal() const;

 private:
  int64_t total_steps_, groups_per_step_;
  int64_t last_step_ = 0;
  double last_s_ = 0;  // when; 0 before the first step
  double pace_s_ = 0;  // seconds a step, smoothed
  std::vector<std::pair<int64_t, int64_t>> without_signal_;  // first and last of neighbouring steps
};

/// "1h02m", "3m20s", "45s".
std::string duration_text(double seconds);

/// "accuracy 25.0 %", the share of answers that count as right; with the mean score behind it where that says more.
std::string accuracy_text(const serve::EvalSummary& summary);

/// The table before/after, some answers before and after, and the command that opens the page. An answer is right from the recipe's
/// eval.right_at on. Synthetic problems are shown as people write numbers.
void print_result(const RunSummary& summary, const std::vector<data::EvalAnswer>& before, const std::vector<data::EvalAnswer>& after,
                  const config::RunConfig& config);

}  // namespace tandem::runtime
