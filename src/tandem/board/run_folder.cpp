// SPDX-License-Identifier: Apache-2.0
#include "tandem/board/run_folder.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tandem/base/error.h"
#include "tandem/base/json_depth.h"
#include "tandem/base/json_file.h"
#include "tandem/base/strings.h"
#include "tandem/data/sample_store.h"

namespace tandem::board {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kIdleAfter_s = 120;
constexpr double kRightAt = 0.5;  // the default of eval.right_at, for folders of runs that did not write it

std::string text_of(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

constexpr int64_t kPart_bytes = int64_t{1} << 16;  // read at a time

// "" for what is no file, or too large to be one of ours.
std::string file_text(const std::string& path) {
  if (!fs::is_regular_file(path)) return "";
  try {
    return read_file(path, RunFolder::kMaxFile_bytes);
  } catch (const UserError&) {
    return "";
  }
}

bool is_metrics(const std::string& line) { return !line.empty() && !nests_too_deep(line) && json::accept(line); }

// Walks over the lines of a part of a file. Of a line that is too long, nothing is kept.
class LineReader {
 public:
  LineReader(const RegularFile& file, int64_t begin, int64_t end) : file_(file), at_(begin), end_(end), part_(kPart_bytes) {}
  /// False where no newline is left.
  bool next() {
    line_.clear();
    for (bool too_long = false;;) {
      if (used_ == filled_ && !fill()) return false;
      const char *from = part_.data() + used_, *end = part_.data() + filled_, *newline = std::find(from, end, '\n');
      too_long = too_long || std::ssize(line_) + (newline - from) > RunFolder::kMaxLine_bytes;
      if (too_long) line_.clear();
      else line_.append(from, newline);
      used_ += newline - from + (newline != end);
      if (newline != end) return true;
    }
  }
  const std::string& line() const { return line_; }

 private:
  bool fill() {
    const int64_t wanted = std::min<int64_t>(kPart_bytes, end_ - at_);
    used_ = 0;
    filled_ = wanted > 0 ? file_.read(at_, std::span(part_.data(), static_cast<size_t>(wanted))) : 0;
    at_ += filled_;
    return filled_ > 0;
  }

  const RegularFile& file_;
  int64_t at_, end_, used_ = 0, filled_ = 0;
  std::vector<char> part_;
  std::string line_;
};

/// A number of one section of a resolved recipe; `absent` if it says none. A page needs no more of the recipe than some numbers.
double recipe_number(const std::string& config, const std::string& section, const std::string& option, double absent) {
  const std::string key = "  " + option + ":";
  std::istringstream lines(config);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.find_first_of(" #") != 0) inside = line.starts_with(section + ":");
    if (!inside || !line.starts_with(key)) continue;
    const std::string text = trimmed(line.substr(key.size()));
    double number = absent;
    return std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc() ? number : absent;
  }
  return absent;
}

int64_t planned_steps(const std::string& config, const std::string& section) {
  return static_cast<int64_t>(std::clamp(recipe_number(config, section, "steps", 0), 0.0, 1e15));
}

double right_at(const std::string& config) { return recipe_number(config, "eval", "right_at", kRightAt); }

/// Both kinds of run write the same recipe; a line of `tandem sft` has no policy that generated.
bool is_supervised(const std::string& metrics_line) {
  const json line = parse_or_discard<json>(metrics_line);
  return line.is_object() && !line.contains("policy_version");
}

int64_t num_pages(int64_t rows, int64_t per_page) { return std::max<int64_t>(1, (rows + per_page - 1) / per_page); }

const char* finish_name(data::FinishReason reason) {
  return reason == data::FinishReason::kStop ? "stop" : reason == data::FinishReason::kLength ? "length" : "aborted";
}

json sample_json(const data::StoredGroup& stored, size_t index) {
  const data::Sample& sample = stored.group.samples[index];
  json parts = json::array();
  for (const auto& [name, number] : sample.parts) parts.push_back({{"name", name}, {"value", number}});
  json out{{"response", sample.text}, {"score", sample.score}, {"advantage", stored.advantages[index]}, {"parts", parts},
           {"tokens", sample.ids.size()}, {"finish", finish_name(sample.finish)}};
  if (sample.versions.empty()) return out;
  const auto [oldest, newest] = std::minmax_element(sample.versions.begin(), sample.versions.end());
  out["oldest_version"] = *oldest;
  out["newest_version"] = *newest;
  return out;
}

json group_json(const data::StoredGroup& stored) {
  json samples = json::array();
  for (size_t i = 0; i < stored.group.samples.size(); ++i) samples.push_back(sample_json(stored, i));
  return {{"id", value(stored.group.id)},          {"row", stored.group.prompt.row},
          {"prompt", stored.group.prompt.text},    {"answer", stored.group.prompt.answer},
          {"version", value(stored.group.version)}, {"lag", data::lag(stored.group, stored.trained_version)},
          {"samples", samples}};
}

int64_t rows_of(const std::vector<data::StepSummary>& steps, int64_t step, int64_t data::StepSummary::*count) {
  for (const auto& it : steps)
    if (value(it.step) == step) return it.*count;
  return 0;
}

}  // namespace

RunFolder::RunFolder(const std::string& folder) : folder_(folder) {
  if (!fs::is_directory(folder)) throw UserError(folder, "no such run folder", "give the --run-dir of a run, such as runs/quickstart");
}

// Whole lines alone: what follows the last newline is still being written.
void RunFolder::index_new_lines() {
  const std::string name = path("metrics.jsonl");
  const bool there = fs::is_regular_file(name);
  if (num_lines_ > 0 && (!there || bytes_of_last_line() != last_line_)) {
    marks_.clear();
    num_lines_ = end_bytes_ = last_begin_bytes_ = 0;
    last_line_.clear();
    ++generation_;
  }
  if (!there) return;
  const RegularFile file(name);
  std::vector<char> part(kPart_bytes);
  int64_t begin = end_bytes_;  // of the line that is being read
  for (int64_t at = end_bytes_, got; (got = file.read(at, part)) > 0; at += got)
    for (const char *from = part.data(), *end = from + got, *newline; (newline = std::find(from, end, '\n')) != end; from = newline + 1) {
      if (num_lines_++ % kLinesPerMark == 0) marks_.push_back(begin);
      last_begin_bytes_ = begin;
      begin = end_bytes_ = at + (newline - part.data()) + 1;
    }
  last_line_ = bytes_of_last_line();
}

// Without its newline; of a line that is too long, the beginning.
std::string RunFolder::bytes_of_last_line() const {
  if (num_lines_ == 0) return "";
  std::string bytes(static_cast<size_t>(std::min(end_bytes_ - last_begin_bytes_ - 1, kMaxLine_bytes)), '\0');
  const RegularFile file(path("metrics.jsonl"));
  bytes.resize(static_cast<size_t>(file.read(last_begin_bytes_, bytes)));
  return bytes;
}

// A run that has not written for a while, by its own pace, is called idle. It may wait, or somebody killed it.
std::string RunFolder::state() const {
  std::error_code absent;
  const auto summary_time = fs::last_write_time(path("summary.json"), absent);
  const bool has_summary = !absent;
  const auto metrics_time = fs::last_write_time(path("metrics.jsonl"), absent);
  const bool has_metrics = !absent;
  if (has_summary && (!has_metrics || metrics_time <= summary_time + std::chrono::seconds(1))) return "finished";
  double step_s = 0;
  if (const json last = parse_or_discard<json>(last_line_); last.is_object() && last.value("time/step_s", json()).is_number())
    step_s = last["time/step_s"];
  auto newest = fs::file_time_type::min();
  for (const char* name : {"metrics.jsonl", "log.txt", "samples.sqlite-wal", "config.yaml"})
    if (const auto time = fs::last_write_time(path(name), absent); !absent) newest = std::max(newest, time);
  const double quiet_s = std::chrono::duration<double>(fs::file_time_type::clock::now() - newest).count();
  return quiet_s < std::max(kIdleAfter_s, 5 * step_s) ? "running" : "idle";
}

std::string RunFolder::run() {
  std::lock_guard lock(mutex_);
  index_new_lines();
  const std::string config = file_text(path("config.yaml"));
  const json summary = parse_or_discard<json>(file_text(path("summary.json")));
  const fs::path absolute = fs::weakly_canonical(folder_);
  return text_of({{"name", absolute.filename().string()},
                  {"folder", absolute.string()},
                  {"state", state()},
                  {"total_steps", planned_steps(config, is_supervised(last_line_) ? "supervised" : "run")},
                  {"config", config},
                  {"summary", summary.is_discarded() ? json() : summary},
                  {"generation", generation_},
                  {"num_lines", num_lines_}});
}

std::string RunFolder::metrics(int64_t from_line) {
  std::lock_guard lock(mutex_);
  index_new_lines();
  const int64_t from = std::clamp<int64_t>(from_line, 0, num_lines_);
  int64_t next = from;
  std::string lines;
  if (from < num_lines_) {
    const RegularFile file(path("metrics.jsonl"));
    LineReader reader(file, marks_[static_cast<size_t>(from / kLinesPerMark)], end_bytes_);
    for (int64_t skipped = from % kLinesPerMark; skipped > 0; --skipped) reader.next();
    while (next < std::min(num_lines_, from + kMaxLines) && std::ssize(lines) < kMaxReply_bytes && reader.next()) {
      ++next;
      if (!is_metrics(reader.line())) continue;
      if (!lines.empty()) lines += ',';
      lines += reader.line();
    }
  }
  return "{\"generation\":" + std::to_string(generation_) + ",\"from\":" + std::to_string(from) + ",\"next\":" + std::to_string(next) +
         ",\"total\":" + std::to_string(num_lines_) + ",\"lines\":[" + lines + "]}";
}

std::string RunFolder::steps() {
  json steps = json::array(), evals = json::array();
  if (fs::exists(path("samples.sqlite"))) {
    const data::SampleReader reader(path("samples.sqlite"));
    for (const auto& it : reader.steps())
      steps.push_back({{"step", value(it.step)}, {"groups", it.num_groups}, {"samples", it.num_samples}, {"score", it.mean_score}});
    for (const auto& it : reader.eval_steps(right_at(file_text(path("config.yaml")))))
      evals.push_back({{"step", value(it.step)}, {"prompts", it.num_groups}, {"answers", it.num_samples}, {"accuracy", it.right_share},
                       {"score", it.mean_score}});
  }
  return text_of({{"steps", steps}, {"evals", evals}});
}

std::string RunFolder::samples(int64_t step, int64_t page) {
  const data::SampleReader reader(path("samples.sqlite"));
  const int64_t rows = rows_of(reader.steps(), step, &data::StepSummary::num_groups);
  const int64_t pages = num_pages(rows, kGroupsPerPage);
  page = std::clamp<int64_t>(page, 0, pages - 1);
  json groups = json::array();
  for (const auto& it : reader.groups(StepId{step}, page * kGroupsPerPage, kGroupsPerPage)) groups.push_back(group_json(it));
  return text_of({{"step", step}, {"page", page}, {"pages", pages}, {"groups", groups}});
}

std::string RunFolder::evals(int64_t step, int64_t page) {
  const data::SampleReader reader(path("samples.sqlite"));
  const double from = right_at(file_text(path("config.yaml")));
  const int64_t rows = rows_of(reader.eval_steps(from), step, &data::StepSummary::num_samples);
  const int64_t pages = num_pages(rows, kAnswersPerPage);
  page = std::clamp<int64_t>(page, 0, pages - 1);
  json answers = json::array();
  for (const auto& it : reader.evals(StepId{step}, page * kAnswersPerPage, kAnswersPerPage))
    answers.push_back({{"row", it.row}, {"prompt", it.prompt}, {"answer", it.answer}, {"response", it.response}, {"score", it.score},
                       {"right", it.score >= from}});
  return text_of({{"step", step}, {"page", page}, {"pages", pages}, {"answers", answers}});
}

}  // namespace tandem::board
