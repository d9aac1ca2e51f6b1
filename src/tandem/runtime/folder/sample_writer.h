// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes a run's samples.sqlite so that a busy database or a full disk does not end the run at once. What cannot be written now stays in
// memory, in order, and is tried again with the next call. Only rank 0 has one.

#include <deque>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "tandem/config/config.h"
#include "tandem/data/sample_store.h"

namespace tandem::runtime {

/// Ownership  owns the store, and copies of what is not written yet.
/// Threads    one.
/// Blocking   a call waits a fraction of a second for another writer, then it leaves the rest for the next call.
/// Errors     UserError at creation, as SampleStore. Afterwards none: fault() says when the run should end.
class SampleWriter {
 public:
  SampleWriter(const std::string& path, const config::RunOptions& options);

  /// As SampleStore::append.
  void append(data::Batch batch, std::vector<double> advantages, std::vector<std::vector<float>> train_logprobs);
  /// As SampleStore::append_evals.
  void append_evals(data::StepId step, std::vector<data::EvalAnswer> answers);
  /// As SampleStore::append_dropped.
  void append_dropped(data::StepId step, std::vector<data::GroupId> groups);
  /// Rows of later steps go, as SampleStore::truncate_after.
  void truncate_after(data::StepId step);
  /// The rows of another store join these; an absent file has none. It may go afterwards: they are copied.
  void adopt(const std::string& path);
  /// Makes what is written durable.
  void flush();
  /// Tries for as long as run.samples_wait_s says, or until `stop`. Errors: PeerError if rows are left.
  void finish(const StopRequested& stop);

  /// Null; a PeerError once something could not be written for run.samples_wait_s seconds.
  std::exception_ptr fault() const;
  /// What is not written yet, as a store of its own at `path`; no file if all is written. Errors: PeerError.
  void save_unwritten(const std::string& path) const;
  /// Rows of samples in the store.
  int64_t num_samples() const { return store_.num_samples(); }

 private:
  using Work = std::function<void(data::SampleStore&)>;
  void write(Work work);
  void try_all();

  const std::string path_;
  const std::string adopted_;   // the copy of an adopted store, while its rows are not written
  const double wait_s_;
  data::SampleStore store_;
  std::deque<Work> unwritten_;
  std::string why_;         // of the last failure
  double failing_since_s_ = 0;  // 0: all is written
};

}  // namespace tandem::runtime
