// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parent's half of the sandbox: reads what a program says, answers it once, and stops it at the limits.

#include "tandem/base/clock.h"
#include "tandem/reward/backend/sandbox.h"

namespace tandem::reward {

/// One program from start to end.
class ProgramWatch {
 public:
  struct Ends {
    Descriptor output, errors, channel;
  };
  /// `folder` is counted against limits.file_bytes; "" if that is held otherwise.
  ProgramWatch(Ends ends, const SandboxLimits& limits, const std::string& folder);

  /// Until the program ends or must be ended.
  ProgramRun follow(Process process, const std::string& question);
  /// Until a judge, who alone has the channel's other end, has said a line or gone, or the program must be ended.
  ProgramRun await_verdict(Process process);

 private:
  bool within_limits(const Process& process);
  short wait();
  void take(Descriptor& fd, std::string& into, size_t keep);
  void converse(const std::string& question);
  bool files_too_large(const Process& process) const;
  void stop(const char* why);

  Ends ends_;
  const SandboxLimits& limits_;
  const std::string& folder_;
  Deadline deadline_;
  ProgramRun run_;
  std::string channel_text_;
  bool asked_ = false;
  int64_t num_bytes_ = 0;    // of output and errors
};

}  // namespace tandem::reward
