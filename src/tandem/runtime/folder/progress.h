// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a person sees while a run goes on: a line per step, and at the end the table.

#include <string>
#include <vector>

#include "tandem/data/sample_store.h"
#include "tandem/monitor/recorder.h"
#include "tandem/runtime/folder/run_folder.h"

namespace tandem::runtime {

/// One line per step with progress and the time left, from the time between the last lines: evaluations and checkpoints count.
class Progress {
 public:
  explicit Progress(int64_t total_steps) : total_steps_(total_steps) {}
  void step(int64_t step, const monitor::Metrics& metrics);
  /// Seconds until the last step; 0 before the first line.
  double left_s() const { return pace_s_ * static_cast<double>(total_steps_ - last_step_); }
  /// Warns of a step whose groups have no signal, the first time; the table at the end names them all.
  void without_signal(int64_t step);
  /// "3, 5 to 9": all such steps since the start; "" if there was none.
  std::string steps_without_signal() const;

 private:
  int64_t total_steps_;
  int64_t last_step_ = 0;
  double last_s_ = 0;  // when; 0 before the first line
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
