// SPDX-License-Identifier: Apache-2.0
#pragma once
// trace.json: the spans of a run in the Chrome trace format, for https://ui.perfetto.dev and chrome://tracing.

#include <set>

#include "tandem/monitor/append_file.h"
#include "tandem/monitor/recorder.h"

namespace tandem::monitor {

/// Complete events ("ph":"X") in microseconds since the Unix epoch, one thread row per track, a global mark per step. The
/// file is whole JSON after every write, so it opens while the run goes on or after it was killed.
///
/// Threads    one at a time, as every Sink.
/// Errors     UserError at creation; spans that cannot be written are lost, with one warning.
class TraceSink : public Sink {
 public:
  explicit TraceSink(const std::string& path, ResumeAt resume_at_bytes = {});

  void write_step(int64_t step, const Metrics& metrics) override;
  void write_spans(const std::vector<SpanRecord>& spans) override;
  int64_t flush() override { return file_.flush(); }
  std::string name() const override { return "trace"; }

 private:
  AppendFile file_;
  double epoch_s_;                ///< Unix time at now_s() == 0, so that a resumed run follows the first one
  std::set<std::string> tracks_;  ///< those that have been named in this file by this process
};

}  // namespace tandem::monitor
