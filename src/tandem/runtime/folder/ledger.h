// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a run keeps of itself, reinforced or supervised: where it stands, its checkpoints, its numbers, its line per step.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tandem/policy/trained_role.h"
#include "tandem/runtime/folder/run_folder.h"
#include "tandem/runtime/folder/run_state.h"
#include "tandem/runtime/folder/progress.h"

namespace tandem::runtime {

/// Threads    one per rank.
/// Errors     as StateFiles and RunFolder.
class Ledger {
 public:
  /// `folder` is null on all ranks but the first. `total_steps` is what the progress counts to.
  Ledger(const policy::RunParts& parts, RunFolder* folder, const std::string& model_dir, int64_t total_steps);

  RunState& state() { return state_; }
  StateFiles& files() { return files_; }
  /// Null on all ranks but the first.
  SampleWriter* samples() { return folder_ ? &folder_->samples() : nullptr; }
  /// Why the run should end: its folder is gone, or its samples cannot be written. Null if it may go on, and on all ranks but the first.
  std::exception_ptr fault() const { return folder_ ? folder_->fault() : nullptr; }

  /// The run's seconds count from here.
  void start_clock();
  /// Loads the newest checkpoint into roles and state, if there is one. Collective.
  bool resume(TrainedRoles roles, const Resume& how);
  /// The sinks go on where the state left them.
  void open();
  double seconds() const;
  /// A checkpoint of the state as it is: whole when it returns, or written behind while the run goes on. Collective.
  void save(TrainedRoles roles, bool behind = false);
  /// Between steps: what is being written behind fails the run if it has failed. Collective.
  void look() { count_written(&StateFiles::look); }
  /// Waits for it; the state is not saved if it has failed. Collective.
  void settle() { count_written(&StateFiles::settle); }
  /// Lines for decisions.jsonl; on rank 0.
  void keep_decisions(const std::string& lines);
  /// Whether the state has a checkpoint.
  bool is_saved() const { return files_.last_saved_step() == state_.step; }
  /// Bytes of memory as metrics. Collective.
  void record_memory() { memory_.record(parts_.recorder, parts_.ranks.world); }
  /// The numbers of state().step go to the sinks; the line per step, every `line_every` steps.
  void commit(int64_t line_every = 1);
  /// What happens now, in the last line of a terminal; null on all ranks but the first.
  LiveLine* live() { return live_ ? &*live_ : nullptr; }
  /// No group of state().step has a signal.
  void without_signal(bool is_scored);
  /// What state().step measured between rollout and training, where no correction acts: warns where it is large, once a run.
  void gap(const train::StepReport& report);
  RunSummary summary() const;

 private:
  void count_written(std::optional<Written> (StateFiles::*ask)());

  const policy::RunParts& parts_;
  RunFolder* folder_;
  StateFiles files_;
  Progress progress_;
  std::optional<LiveLine> live_;
  policy::MemoryMetrics memory_;
  RunState state_;
  int64_t total_steps_;
  double started_s_ = 0, seconds_before_ = 0;
};

}  // namespace tandem::runtime
