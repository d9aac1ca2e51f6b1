// SPDX-License-Identifier: Apache-2.0
#include "tandem/monitor/trace_sink.h"

#include <array>
#include <chrono>
#include <cstdio>

#include "tandem/base/clock.h"
#include "tandem/monitor/event_record.h"
#include "tandem/monitor/json_text.h"

namespace tandem::monitor {
namespace {

constexpr const char* kHead =
    R"({"displayTimeUnit":"ms","traceEvents":[
{"name":"process_name","ph":"M","pid":1,"args":{"name":"tandem"}})";
constexpr const char* kTail = "\n]}\n";

void append_us(std::string& out, double seconds) {
  std::array<char, 48> text;
  out.append(text.data(), static_cast<size_t>(std::snprintf(text.data(), text.size(), "%.3f", seconds * 1e6)));
}

// Each event begins with ",\n" and has no end of its own: it is whole where another begins, or the tail.
int64_t whole_events(int file, int64_t bytes) {
  const std::string next = bytes_at(file, bytes, 2);
  if (next == ",\n" || next == "\n]") return bytes;
  for (int64_t end = whole_lines(file, bytes); end > 1; end = whole_lines(file, end - 1))
    if (bytes_at(file, end - 2, 2) == ",\n") return end - 2;
  return 0;
}

// A row id made from the name stays the same over a resume.
uint32_t track_id(const std::string& track) { return crc32c(track) & 0x7fffffffu; }

}  // namespace

TraceSink::TraceSink(const std::string& path, ResumeAt resume_at_bytes)
    : file_(path, resume_at_bytes, whole_events, kTail),
      epoch_s_(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() - now_s()) {
  if (file_.size_bytes() == 0) file_.append(kHead);
}

void TraceSink::write_step(int64_t step, const Metrics&) {
  std::string event = ",\n{\"name\":\"step " + std::to_string(step) + "\",\"ph\":\"i\",\"s\":\"g\",\"pid\":1,\"tid\":0,\"ts\":";
  append_us(event, epoch_s_ + now_s());
  file_.append(event + "}");
}

void TraceSink::write_spans(const std::vector<SpanRecord>& spans) {
  std::string events;
  for (const SpanRecord& span : spans) {
    const std::string id = std::to_string(track_id(span.track));
    if (tracks_.insert(span.track).second) {
      events += ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":" + id + ",\"args\":{\"name\":";
      append_json_string(events, span.track);
      events += "}}";
    }
    events += ",\n{\"name\":";
    append_json_string(events, span.name);
    events += ",\"ph\":\"X\",\"pid\":1,\"tid\":" + id + ",\"ts\":";
    append_us(events, epoch_s_ + span.begin_s);
    events += ",\"dur\":";
    append_us(events, span.end_s - span.begin_s);
    events += '}';
  }
  if (!events.empty()) file_.append(events);
}

}  // namespace tandem::monitor
