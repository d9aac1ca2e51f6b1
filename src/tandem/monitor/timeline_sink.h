// SPDX-License-Identifier: Apache-2.0
#pragma once
// timeline.jsonl: what each rank did in a step, a line a step, for the page of a run and for `tandem top`.
//
//   {"step":5,"begin_s":12.31,"ranks":{"rank 0":[["rollout",0,412,380],["train",412,655,0]],"rank 1":[...]},"workers":{"worker 0":"..."}}
//
// A stage has its name, begin and end in milliseconds since begin_s (seconds since the Unix epoch), and how many of them the rank waited
// for others. Of a worker it says in words how it does; `workers` is there where a run has any.

#include <string>
#include <utility>
#include <vector>

#include "tandem/monitor/append_file.h"
#include "tandem/monitor/recorder.h"

namespace tandem::monitor {

/// Threads    one at a time, as every Sink.
/// Errors     UserError at creation; a line that cannot be written is lost whole, with one warning.
class TimelineSink : public Sink {
 public:
  explicit TimelineSink(const std::string& path, ResumeAt resume_at_bytes = {});

  void write_step(int64_t step, const Metrics& metrics) override;
  void write_spans(const std::vector<SpanRecord>& spans) override;
  int64_t flush() override { return file_.flush(); }
  std::string name() const override { return "timeline"; }

 private:
  AppendFile file_;
  const double epoch_s_;           // Unix time at now_s() == 0
  std::vector<SpanRecord> spans_;  // since the last step, of ranks
  std::vector<std::pair<std::string, std::string>> workers_;  // tracks and what they do
};

}  // namespace tandem::monitor
