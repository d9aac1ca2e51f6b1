// SPDX-License-Identifier: Apache-2.0
#include "tandem/monitor/recorder.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "tandem/base/clock.h"

namespace tandem::monitor {
namespace {

/// Runs `record` under the mutex. A number that finds no memory is lost: recording must not end a run.
template <class Record>
void guarded(std::mutex& mutex, Record record) noexcept {
  try {
    std::lock_guard lock(mutex);
    record();
  } catch (const std::exception&) {
  }
}

}  // namespace

void Recorder::add_sink(std::unique_ptr<Sink> sink) {
  std::lock_guard lock(sink_mutex_);
  sinks_.push_back(std::move(sink));
}

void Recorder::set(std::string_view name, double value) noexcept {
  guarded(mutex_, [&] { metrics_[std::string(name)] = value; });
}

void Recorder::add(std::string_view name, double value) noexcept {
  guarded(mutex_, [&] { metrics_[std::string(name)] += value; });
}

void Recorder::peak(std::string_view name, double value) noexcept {
  guarded(mutex_, [&] {
    const auto [entry, is_new] = metrics_.try_emplace(std::string(name), value);
    if (!is_new) entry->second = std::max(entry->second, value);
  });
}

double Recorder::current(std::string_view name) const noexcept {
  double value = 0;
  guarded(mutex_, [&] {
    const auto entry = metrics_.find(std::string(name));
    if (entry != metrics_.end()) value = entry->second;
  });
  return value;
}

void Recorder::span(std::string_view name, std::string_view track, double begin_s, double end_s, double waited_s) noexcept {
  guarded(mutex_, [&] { spans_.push_back({std::string(name), std::string(track), begin_s, end_s, waited_s}); });
}

Metrics Recorder::current() const {
  std::lock_guard lock(mutex_);
  return metrics_;
}

Metrics Recorder::commit_step(int64_t step) {
  Metrics metrics;
  std::vector<SpanRecord> spans;
  locked(mutex_, [&] { metrics.swap(metrics_), spans.swap(spans_); });
  std::lock_guard lock(sink_mutex_);
  for (auto& sink : sinks_) {
    sink->write_spans(spans);
    sink->write_step(step, metrics);
  }
  return metrics;
}

std::map<std::string, int64_t> Recorder::flush() {
  std::lock_guard lock(sink_mutex_);
  std::map<std::string, int64_t> offsets;
  for (auto& sink : sinks_) offsets[sink->name()] = sink->flush();
  return offsets;
}

}  // namespace tandem::monitor
