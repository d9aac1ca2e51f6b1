// SPDX-License-Identifier: Apache-2.0
#pragma once
// metrics.jsonl: one object a line, `step` first, the other metrics by name.

#include "tandem/monitor/append_file.h"
#include "tandem/monitor/recorder.h"

namespace tandem::monitor {

/// Threads    one at a time, as every Sink.
/// Errors     UserError at creation; a line that cannot be written is lost whole, with one warning.
class JsonlSink : public Sink {
 public:
  explicit JsonlSink(const std::string& path, ResumeAt resume_at_bytes = {}) : file_(path, resume_at_bytes, whole_lines) {}

  void write_step(int64_t step, const Metrics& metrics) override;
  int64_t flush() override { return file_.flush(); }
  std::string name() const override { return "metrics"; }

 private:
  AppendFile file_;
};

}  // namespace tandem::monitor
