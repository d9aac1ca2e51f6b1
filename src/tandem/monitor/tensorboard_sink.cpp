// SPDX-License-Identifier: Apache-2.0
#include "tandem/monitor/tensorboard_sink.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>

#include "tandem/monitor/event_record.h"

namespace tandem::monitor {
namespace {

double wall_time_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string newest_event_file(const std::string& folder) {
  std::string newest;
  std::error_code absent;
  for (const auto& entry : std::filesystem::directory_iterator(folder, absent)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("events.out.tfevents.") && name.ends_with(".tandem")) newest = std::max(newest, entry.path().string());
  }
  return newest;
}

std::string new_event_file(const std::string& folder) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {"localhost"};
  const auto seconds = static_cast<int64_t>(wall_time_s());
  return folder + "/events.out.tfevents." + std::to_string(seconds) + "." + host.data() + ".tandem";
}

std::string event_file(const std::string& folder, const ResumeAt& resume_at_bytes) {
  const std::string newest = resume_at_bytes ? newest_event_file(folder) : "";
  return newest.empty() ? new_event_file(folder) : newest;
}

int64_t whole_records(int file, int64_t bytes) {
  int64_t end = 0;
  while (const auto size = record_bytes(bytes_at(file, end, kRecordHead_bytes))) {
    if (*size > bytes - end) break;
    end += *size;
  }
  return end;
}

}  // namespace

TensorBoardSink::TensorBoardSink(const std::string& folder, ResumeAt resume_at_bytes)
    : file_(event_file(folder, resume_at_bytes), resume_at_bytes, whole_records) {
  if (file_.size_bytes() == 0) file_.append(framed_record(version_event(wall_time_s())));
}

void TensorBoardSink::write_step(int64_t step, const Metrics& metrics) {
  if (!metrics.empty()) file_.append(framed_record(scalar_event(wall_time_s(), step, metrics)));
}

}  // namespace tandem::monitor
