// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a checkpoint holds besides the weights, and how all ranks write and read it.
//
//   step_N/  hf/ (weights, config, tokenizer)   adapter/ (with LoRA, as PEFT)
//            optimizer_rank<R>.safetensors   queue.bin   state.json   manifest.json
//            samples.sqlite (samples that the run's own store did not take, if there are any)
//            critic/ (hf/ and optimizer_rank<R>.safetensors of a further trained role)
//
// Whatever the layout of those that wrote it, ranks of any other can go on.

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tandem/checkpoint/run_state.h"
#include "tandem/policy/export.h"
#include "tandem/monitor/score_course.h"
#include "tandem/serve/answers.h"

namespace tandem::runtime {

/// In memory: the loops of rl_run.h and supervised_run.h change it between steps, and StateFiles::save writes it on rank 0. Tokens,
/// sinks' offsets, counts of samples, the digest, unconcluded metrics and the queue are right on rank 0 alone; the rest is equal on every
/// rank.
struct RunState {
  int64_t step = 0;                  ///< last finished optimizer step
  int64_t version = 0;               ///< policy version after it
  int64_t next_group = 0;            ///< position of the prompt stream
  int64_t tokens = 0;
  double seconds = 0;
  std::optional<double> kl_coef;     ///< where it adapts: the weight of the KL term in the next step
  std::vector<double> deviations;    ///< of the last batches' advantages before they were whitened; algo/algorithm.h: usual_deviation
  monitor::ScoreCourse scores;                ///< of the steps so far
  int64_t lr_steps = 0;              ///< train/options.h:lr_steps_of; 0 before the first start, and in checkpoints of older versions
  std::optional<serve::EvalSummary> before; ///< once it was measured
  std::string eval_digest;           ///< RunFolder::eval_digest of `before`; empty in checkpoints of older versions
  bool gap_told = false;             ///< Ledger::gap has warned
  std::map<std::string, double> unconcluded;  ///< metrics of `step` if the run stopped before it had evaluated and committed them
  std::map<std::string, int64_t> sink_bytes;
  int64_t num_samples = 0;           ///< in samples.sqlite; 0 in checkpoints of older versions
  std::string unwritten_samples;     ///< of a loaded state: a store with those that samples.sqlite did not take; there may be no such file
  std::vector<std::byte> queue;      ///< of queue::SampleQueue::state; empty in supervised runs
};

/// The weights a run starts from: what adapters are added to, and the reference of a KL penalty.
struct StartModel {
  std::string path;
  std::string checksum;  ///< model/weight_checksum.h
};

/// As state.json and summary.json have it; without tokens_per_s.
nlohmann::json to_json(const serve::EvalSummary& summary);

/// What a run trains: the actor first, then a critic, if it has one.
using TrainedRoles = std::span<policy::TrainedRole* const>;

/// Writes samples to a file of that path; where it is empty there is nothing.
using SaveSamples = std::function<void(const std::string& path)>;

/// A checkpoint that was written behind the run, and when.
struct Written {
  int64_t step;
  double begin_s, end_s;
};

/// What a resume asks for besides the roles.
struct Resume {
  bool needs_start = false;  ///< the run still uses its start, for adapters or as reference
  std::function<void(const policy::TrainedRole&)> bring;  ///< makes the memory of a role present before it is loaded; may be empty
};

/// Ownership  uses the roles' tensors. Owns and joins the thread of a rank that writes behind the run, and the copies it writes from.
/// Threads    one per rank, beside that one, which talks to those of other ranks in a group of its own.
/// Blocking   all calls but a constructor of one rank are collective. save returns when the checkpoint is committed, save_behind when the
///            copies are made. The end waits for what is being written.
/// Errors     PeerError naming the path if the disk is full: the attempt is dropped on all ranks and earlier checkpoints stay.
/// Read next  docs/design/save.md
class StateFiles {
 public:
  /// `model_dir` is where the run started.
  StateFiles(const policy::RunParts& parts, const std::string& run_dir, std::string model_dir);
  /// Where a checkpoint that is being written fails, a warning says so: the run has ended for another reason.
  ~StateFiles();

  /// Loads the actor with the weights of the start, and notes which they are. First of all; collective.
  void load_start(policy::TrainedRole& actor);
  /// `save_samples` writes what samples.sqlite did not take.
  void save(const RunState& state, TrainedRoles roles, const SaveSamples& save_samples = {});
  /// The same, written by threads while the run goes on: from the tensors as they lie on the CPU, and the next update waits until they are
  /// read; of a device, from copies, and as save() where there is no room for them, which a warning says. Waits for the checkpoint before,
  /// and fails if that one fails.
  void save_behind(const RunState& state, TrainedRoles roles, const SaveSamples& save_samples = {});
  /// Waits until no writer reads the roles. Each update of theirs calls it; what moves their memory must. Of one rank.
  void let_go();
  /// Between steps: the checkpoint that is being written counts if it is done by now. nullopt if none has been written since the last
  /// call. Errors: of save(), if it has failed.
  std::optional<Written> look();
  /// Waits for it. Errors: the same.
  std::optional<Written> wait();
  /// The same before a save() that takes its place if it has failed: a warning says so.
  std::optional<Written> settle();
  /// The newest whole checkpoint, as rank 0 finds it; nullopt if there is none. Loads the roles and returns the state.
  /// Errors: UserError if the run needs its start and the checkpoint has another; if it is of another model or a newer format, has not the
  /// roles, or cannot be read.
  std::optional<RunState> load(TrainedRoles roles, const Resume& resume);
  int64_t last_saved_step() const { return last_saved_step_; }
  const policy::Exporter& exporter() const { return exporter_; }
  /// Where the weights of the start were loaded from; `latest` and other links are resolved.
  const std::string& start_dir() const { return exporter_.model_dir(); }

 private:
  void check_start(const StartModel& before, const std::string& where) const;
  bool has_room(TrainedRoles roles);
  policy::FileWriter begin(const RunState& state, TrainedRoles roles, const SaveSamples& save_samples);
  std::string state_text(const RunState& state, TrainedRoles roles) const;
  void commit(comm::Group& group, int64_t step, const Sums& mine);
  policy::FileWriter optimizer_writer(const policy::TrainedRole& role, device::Arena* host = nullptr) const;
  [[noreturn]] void abandon(int64_t step, const std::exception& why);

  const policy::RunParts& parts_;
  std::string root_;
  policy::Exporter exporter_;
  StartModel start_;
  checkpoint::CheckpointWriter writer_;
  int64_t last_saved_step_ = -1;
  std::unique_ptr<comm::Group> writers_;  // the threads that write
  bool told_of_room_ = false;
  std::atomic<bool> is_failing_ = false;  // this rank's thread, which waits for the others
  std::future<void> reading_;             // of the roles, by that thread
  std::future<Written> writing_;          // last: its end uses all the others
};

/// What a run computes its products with, by its newest checkpoint; empty if it has none. Collective.
/// Errors: UserError for a file that is damaged or of a newer format.
model::Products products_of_run(const std::string& run_dir, comm::Group& world);
/// What a checkpoint of an earlier version of Tandem says of its algo.correction.
inline constexpr const char* kNotSaid = "not said";
/// The algo.correction that its newest checkpoint was made with, or kNotSaid; "" without a readable one. Collective.
std::string correction_of_run(const std::string& run_dir, comm::Group& world);

}  // namespace tandem::runtime
