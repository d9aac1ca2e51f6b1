// SPDX-License-Identifier: Apache-2.0
#include "tandem/monitor/timeline_sink.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string_view>
#include <utility>

#include "tandem/base/clock.h"
#include "tandem/monitor/json_text.h"

namespace tandem::monitor {
namespace {

constexpr std::string_view kRankTrack = "rank ", kWorkerTrack = "worker ";  // others tell what a rank did within a stage

void append_ms(std::string& out, double seconds) { out += std::to_string(std::llround(seconds * 1e3)); }

}  // namespace

TimelineSink::TimelineSink(const std::string& path, ResumeAt resume_at_bytes)
    : file_(path, resume_at_bytes, whole_lines),
      epoch_s_(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() - now_s()) {}

void TimelineSink::write_spans(const std::vector<SpanRecord>& spans) {
  for (const SpanRecord& span : spans) {
    if (span.track.starts_with(kRankTrack)) spans_.push_back(span);
    if (span.track.starts_with(kWorkerTrack)) workers_.emplace_back(span.track, span.name);
  }
}

void TimelineSink::write_step(int64_t step, const Metrics&) {
  std::vector<SpanRecord> spans = std::exchange(spans_, {});
  const auto workers = std::exchange(workers_, {});
  if (spans.empty()) return;
  std::ranges::stable_sort(spans, {}, [](const SpanRecord& s) { return std::pair(s.track.size(), s.track); });  // rank 2 before rank 10
  const double begin_s = std::ranges::min_element(spans, {}, &SpanRecord::begin_s)->begin_s;
  std::string line = "{\"step\":" + std::to_string(step) + ",\"begin_s\":";
  append_json_number(line, epoch_s_ + begin_s);
  line += ",\"ranks\":{";
  for (size_t i = 0; i < spans.size(); ++i) {
    const SpanRecord& span = spans[i];
    if (i == 0 || span.track != spans[i - 1].track) {
      if (i > 0) line += "],";
      append_json_string(line, span.track);
      line += ":[";
    } else {
      line += ',';
    }
    line += '[';
    append_json_string(line, span.name);
    for (const double seconds : {span.begin_s - begin_s, span.end_s - begin_s, span.waited_s}) line += ',', append_ms(line, seconds);
    line += ']';
  }
  line += "]}";
  for (size_t i = 0; i < workers.size(); ++i) {
    line += i == 0 ? ",\"workers\":{" : ",";
    append_json_string(line, workers[i].first);
    line += ':';
    append_json_string(line, workers[i].second);
  }
  file_.append(line + (workers.empty() ? "}\n" : "}}\n"));
}

}  // namespace tandem::monitor
