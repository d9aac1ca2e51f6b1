// SPDX-License-Identifier: Apache-2.0
#pragma once
// tensorboard/events.out.tfevents.<time>.<host>.tandem: the same scalars for TensorBoard, as float32.

#include "tandem/monitor/append_file.h"
#include "tandem/monitor/recorder.h"

namespace tandem::monitor {

/// Threads    one at a time, as every Sink.
/// Errors     UserError at creation; a step that cannot be written is lost whole, with one warning.
/// Read next  event_record.h (the bytes).
class TensorBoardSink : public Sink {
 public:
  /// With `resume_at_bytes`, goes on in the newest event file of `folder`; otherwise begins one.
  explicit TensorBoardSink(const std::string& folder, ResumeAt resume_at_bytes = {});

  void write_step(int64_t step, const Metrics& metrics) override;
  int64_t flush() override { return file_.flush(); }
  std::string name() const override { return "tensorboard"; }
  const std::string& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

}  // namespace tandem::monitor
