// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folder of a run and everything that is written into it while it goes on. Only rank 0 has one.

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "tandem/checkpoint/lock_file.h"
#include "tandem/config/config.h"
#include "tandem/data/decisions.h"
#include "tandem/monitor/append_file.h"
#include "tandem/monitor/recorder.h"
#include "tandem/runtime/folder/run_state.h"
#include "tandem/runtime/folder/sample_writer.h"
#include "tandem/serve/answers.h"
#include "tandem/sink/worker.h"

namespace tandem::runtime {

/// What inputs.txt keeps of a function that the program around a run gave it, and no recipe names.
struct HostFunction {
  std::string option;  ///< what it stands for: reward, advantage or loss
  std::string name;
  std::string file;    ///< of its source; "" where there is none, as in a notebook
};

struct RunSummary {
  std::optional<serve::EvalSummary> before, after;
  int64_t steps = 0;           ///< optimizer steps of the whole run
  double seconds = 0;          ///< over all its parts, if it was resumed
  int64_t tokens = 0;          ///< prompt and response tokens trained on
  std::string without_signal;  ///< steps since this start whose groups had none: "3, 5 to 9"
};

/// What becomes of an earlier run in the folder.
enum class EarlierRun { kRefuse, kResume, kPutAside };

/// Ownership  holds RUN_DIR/.lock while it lives: one process at a time writes into the folder.
/// Errors     UserError if the folder exists and the run does not resume, holds something else, is in use, or cannot be
///            written; if a resumed run would draw other prompts or samples than the recipe it has (config.yaml). A run that is
///            refused before its first file puts back what it had put aside.
class RunFolder {
 public:
  RunFolder(const std::string& dir, const config::RunConfig& config, EarlierRun earlier, std::span<const HostFunction> functions = {});
  ~RunFolder();

  /// Once the state is accepted: writes config.yaml and attaches metrics, TensorBoard, trace and samples, cut back to what its checkpoint
  /// knew. Without a checkpoint they begin anew, and what an earlier attempt left goes to a folder aside_N; so does a damaged
  /// samples.sqlite. What is missing is said. The process of monitor.sinks, if there are any, begins to follow the metrics.
  void open_sinks(monitor::Recorder& recorder, const RunState& state);
  /// The recipe as it has become before the sinks are opened.
  void keep_recipe(const config::RunConfig& config);
  SampleWriter& samples() { return *samples_; }
  /// decisions.jsonl; null under any schedule but a free one.
  monitor::AppendFile* decisions() { return decisions_ ? &*decisions_ : nullptr; }
  /// Why the run should end: a PeerError where somebody removed or moved the folder, or SampleWriter::fault. Null if there is nothing.
  std::exception_ptr fault() const;
  /// Before a checkpoint: a folder that was removed is made again, so that the last step is saved there. Errors: PeerError if another
  /// run has its place.
  void come_back();
  /// A digest of the problems that this start evaluates on and of all that grades them. Evaluations that share it can be compared.
  const std::string& eval_digest() const { return eval_digest_; }
  std::string path(const std::string& name) const { return dir_ + "/" + name; }
  const std::string& dir() const { return dir_; }
  /// summary.json.
  void write_summary(const RunSummary& summary);
  /// Waits for monitor.sinks, for a bounded time (sink/worker.h). Without it, the end of the folder is that of a failed run.
  void end_sinks(sink::End how);

 private:
  struct Claimed {};  // the folder is there, and locked
  RunFolder(const std::string& dir, const config::RunConfig& config, EarlierRun earlier, Claimed);
  bool holds(const std::string& name) const;
  void remove_unused() const;
  enum class Place { kOurs, kGone, kOfOthers };
  Place place() const;
  std::string put_aside(const std::vector<std::string>& names) const;
  bool put_back() const;
  bool holds_work() const;
  void open_samples(const RunState& state);

  std::string dir_;
  std::string config_yaml_;
  checkpoint::LockFile lock_;
  bool made_ = false;
  std::string eval_digest_;
  std::string inputs_;  // file_digest of each file that the run reads, and its host's functions, a line each
  std::string aside_;  // where an earlier run was put; "" if there was none
  config::RunOptions options_;
  bool is_free_;
  std::unique_ptr<SampleWriter> samples_;
  std::optional<monitor::AppendFile> decisions_;
  sink::Job sink_job_;
  std::unique_ptr<sink::Worker> sinks_;  // null where the recipe names none
};

/// Makes the folder if there is none. Errors: UserError if it holds something and an earlier run is refused; else if what it holds is
/// no run.
void claim_folder(const std::string& dir, EarlierRun earlier);

/// Errors: UserError naming the option if the run reads a file that kPutAside would move, such as a model in its own folder.
void check_put_aside(const config::RunConfig& config, const std::string& replay, const std::string& replay_decisions);

/// Errors: UserError naming an option that decides which samples are drawn or how they are trained on and that the run in `run_dir` has
/// otherwise; if this run is not free, or has more steps than there are decisions.
void check_follows(const config::RunConfig& config, const std::string& run_dir, const data::DecisionReader& decisions);

/// Compares the recipe of a run with the one it is to go on with. What decides which prompt a group has and how its samples
/// are drawn must be equal; other changes are logged. Errors: UserError naming the option and both values.
void check_same_run(const config::RunConfig& before, const config::RunConfig& now, const std::string& where);

}  // namespace tandem::runtime
