// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes a run's samples.sqlite beside the run, on a thread of its own. A busy database or a full disk does not end the run at once: what
// cannot be written now waits, in order, and is tried again. Only rank 0 has one.
//
//   append        the heads of a step, and where the ranks that trained its samples left them
//   the thread    joins the parts to a batch, writes it, and removes their files
//   flush         before a checkpoint: all of it is written, or could not be
//   save_unwritten  then the checkpoint has it

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/config/config.h"
#include "tandem/data/sample_store.h"

namespace tandem::runtime {

/// The samples of a step as one of the ranks that trained them has them. Another than the first leaves them in a file of the run folder,
/// RUN_DIR/samples.d/STEP.RANK, until its rows are in samples.sqlite.
struct SamplePart {
  std::vector<data::Group> groups;                 ///< with bodies; a group may lack samples, and its prompt without the first of them
  std::vector<std::vector<float>> train_logprobs;  ///< one vector per sample, in their order
};

/// Where parts lie. The first rank makes it.
std::string parts_dir(const std::string& run_dir);
/// `rank` is that of the world.
std::string part_file(const std::string& run_dir, data::StepId step, int rank);

std::vector<std::byte> pack(const SamplePart& part);
/// Inverse of pack. Errors: PeerError saying what is wrong.
SamplePart unpack_part(std::span<const std::byte> bytes);

/// A file of what pack gave. It need not outlive the machine: a checkpoint counts on samples.sqlite. Errors: PeerError naming the path, and
/// then there is no such file.
void write_part(const std::string& path, std::span<const std::byte> bytes);
/// Errors: PeerError naming the path.
SamplePart read_part(const std::string& path);

/// The samples of a step, each in one part.
struct StepParts {
  std::vector<SamplePart> here;
  std::vector<std::string> files;  ///< of other parts; they go once their rows are written
};

/// Ownership  owns the store, what is not written yet, and the folder of parts; owns and joins its thread.
/// Threads    one, beside its own.
/// Blocking   append while some steps wait to be written and none has failed; truncate_after, adopt, flush and finish. Each for at most a
///            minute in which nothing gets written; finish for run.samples_wait_s, too.
/// Errors     UserError at creation, as SampleStore. Afterwards none: fault() says when the run should end.
class SampleWriter {
 public:
  /// Parts that an earlier start left go: no checkpoint counts on them.
  SampleWriter(const std::string& path, const config::RunOptions& options);
  /// Writes what is left, up to the first fault.
  ~SampleWriter();
  SampleWriter(const SampleWriter&) = delete;
  SampleWriter& operator=(const SampleWriter&) = delete;

  /// Makes the folder for parts of other ranks. Where that fails they find none, and send them.
  void open_parts();
  /// As SampleStore::append; `heads` are without bodies, and `parts` have those of all their samples.
  void append(data::Batch heads, std::vector<double> advantages, StepParts parts);
  /// As SampleStore::append_evals.
  void append_evals(data::StepId step, std::vector<data::EvalAnswer> answers);
  /// As SampleStore::append_dropped.
  void append_dropped(data::StepId step, std::vector<data::GroupId> groups);
  /// Rows of later steps go, as SampleStore::truncate_after.
  void truncate_after(data::StepId step);
  /// The rows of another store join these; an absent file has none. It may go afterwards: they are copied.
  void adopt(const std::string& path);
  /// What was appended is written and durable when it returns, unless something cannot be written now: then it goes on waiting.
  void flush();
  /// Tries for as long as run.samples_wait_s says, or until `stop`. Errors: PeerError if rows are left.
  void finish(const StopRequested& stop);

  /// Null; a PeerError once something could not be written for run.samples_wait_s seconds.
  std::exception_ptr fault() const;
  /// What is not written yet, as a store of its own at `path`; no file if all is written. A step with a part that cannot be read is left
  /// out, with a warning. Errors: PeerError.
  void save_unwritten(const std::string& path) const;
  /// Rows of samples in the store.
  int64_t num_samples() const;

 private:
  struct Work {
    std::function<void(data::SampleStore&)> write;
    std::vector<std::string> files;  // which it reads, and which go afterwards
    bool is_step = false;
  };
  void add(Work work);
  void settle();
  void wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_over);
  void write_all();
  void try_first();
  void note_failure(const std::string& why);

  const std::string path_, parts_dir_;
  const std::string adopted_;         // the copy of an adopted store, while its rows are not written
  const double wait_s_;
  mutable std::mutex store_mutex_;    // guards the store, and what works read; taken before the other
  data::SampleStore store_;
  mutable std::mutex mutex_;          // guards what follows
  std::condition_variable changed_;
  std::deque<Work> unwritten_;
  int64_t num_steps_ = 0;             // of them
  int64_t num_added_ = 0, num_written_ = 0, num_failures_ = 0;
  std::string why_;                   // of the last failure
  double failing_since_s_ = 0;        // 0: the last try did not fail
  std::exception_ptr bug_;            // what no second try mends
  bool tries_now_ = false, is_closing_ = false;
  int64_t num_tries_ = 0;             // in a row that failed; of the thread alone
  std::thread thread_;                // last: it uses all the others
};

}  // namespace tandem::runtime
