// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where every part of a run leaves its numbers. Recording never blocks on I/O and never throws; sinks write at commit.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::monitor {

/// A named stretch of time on one track ("rank 0"), in seconds of base::now_s().
struct SpanRecord {
  std::string name;
  std::string track;
  double begin_s, end_s;
  double waited_s = 0;  ///< of it, for others
};

using Metrics = std::map<std::string, double>;

/// Gets each committed step. Called by one thread at a time; may throw UserError at creation only.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void write_step(int64_t step, const Metrics& metrics) = 0;
  virtual void write_spans(const std::vector<SpanRecord>&) {}
  /// Makes everything written so far durable; returns the byte offset to truncate to on resume.
  virtual int64_t flush() = 0;
  virtual std::string name() const = 0;
};

/// Threads    any thread may record; commit_step is called by the loop.
/// Blocking   never (a short mutex).
/// Errors     none while recording.
class Recorder {
 public:
  void add_sink(std::unique_ptr<Sink> sink);
  void set(std::string_view name, double value) noexcept;   ///< last value of the step wins
  void add(std::string_view name, double value) noexcept;   ///< summed over the step
  void peak(std::string_view name, double value) noexcept;  ///< largest of the step
  double current(std::string_view name) const noexcept;     ///< value so far in this step; 0 if absent
  Metrics current() const;                                  ///< everything so far in this step
  void span(std::string_view name, std::string_view track, double begin_s, double end_s, double waited_s = 0) noexcept;

  /// Hands the step's metrics and spans to the sinks and starts the next step empty. Returns what was committed.
  Metrics commit_step(int64_t step);
  /// Byte offset of each sink by its name, after a flush.
  std::map<std::string, int64_t> flush();

 private:
  mutable std::mutex mutex_;  ///< guards metrics_ and spans_; never held while a sink writes
  Metrics metrics_;
  std::vector<SpanRecord> spans_;
  std::mutex sink_mutex_;  ///< guards sinks_; a slow disk holds up commit_step alone
  std::vector<std::unique_ptr<Sink>> sinks_;
};

}  // namespace tandem::monitor
