// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folder of a run and everything that is written into it while it goes on. Only rank 0 has one.

#include <map>
#include <memory>
#include <string>

#include "tandem/data/sample_store.h"
#include "tandem/runtime/context.h"
#include "tandem/runtime/run.h"

namespace tandem::runtime {

/// Errors  UserError if the folder exists and the run does not resume, or cannot be written.
class RunFolder {
 public:
  /// Claims the folder and writes config.yaml.
  RunFolder(const std::string& dir, const RunConfig& config, bool resume);

  /// Attaches metrics, TensorBoard, trace and samples, cut back to what the checkpoint of `step` knew (empty: from the start).
  void open_sinks(monitor::Recorder& recorder, const std::map<std::string, int64_t>& sink_bytes, int64_t step);
  data::SampleStore& samples() { return *samples_; }
  std::string path(const std::string& name) const { return dir_ + "/" + name; }
  const std::string& dir() const { return dir_; }
  /// summary.json.
  void write_summary(const RunSummary& summary);

 private:
  std::string dir_;
  std::unique_ptr<data::SampleStore> samples_;
};

/// Errors: UserError if `dir` holds something and `resume` is false; also if a `resume` finds no run there.
void claim_folder(const std::string& dir, bool resume);

}  // namespace tandem::runtime
