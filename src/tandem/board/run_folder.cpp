// SPDX-License-Identifier: Apache-2.0
#include "tandem/board/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/file/descriptor.h"
#include "tandem/base/json_depth.h"
#include "tandem/base/json_file.h"
#include "tandem/net/prometheus.h"
#include "tandem/data/sample_store.h"
#include "tandem/data/schema.h"

namespace tandem::board {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

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

/// What a resolved recipe says of an option; nothing if it does not. A page needs no more of the recipe than a few numbers.
std::optional<double> option_of(const std::string& config, const std::string& section, const std::string& name) {
  const std::string key = "  " + name + ": ";
  std::istringstream lines(config);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.find_first_of(" #") != 0) inside = line.starts_with(section + ":");
    if (!inside || !line.starts_with(key)) continue;
    double number = 0;
    const auto [end, error] = std::from_chars(line.data() + key.size(), line.data() + line.size(), number);
    return error == std::errc() && std::isfinite(number) ? std::optional(number) : std::nullopt;
  }
  return std::nullopt;
}

constexpr std::string_view kEvaluation = "eval/";  // how metrics of an evaluation begin

constexpr double kRightAt = 0.5;  // of a recipe that does not say it

double right_at_of(const std::string& config) { return option_of(config, "eval", "right_at").value_or(kRightAt); }

/// Whether a process holds the lock that a run has as long as it goes on. To ask takes the lock for a moment, if it is free; who starts a
/// run waits that long (runtime/folder/run_folder.cpp:lock_file).
bool is_held(const std::string& lock) {
  const Descriptor file(::open(lock.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  return file.is_open() && ::flock(file.number(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

struct LogEntry {
  std::string level, text;
};

/// The last entry of a log, of which each begins with a time and a level (base/log.h). Empty where there is none in the last part.
LogEntry last_entry(const std::string& path) {
  if (!fs::is_regular_file(path)) return {};
  const RegularFile file(path);
  const int64_t bytes = file.size_bytes();
  std::string end(static_cast<size_t>(std::min(bytes, kPart_bytes)), '\0');
  end.resize(static_cast<size_t>(file.read(bytes - std::ssize(end), end)));
  constexpr size_t kStamp = sizeof "2026-01-31T12:00:00Z";  // with the blank behind it
  LogEntry last;
  std::istringstream lines(end);
  for (std::string line; std::getline(lines, line);) {
    if (line.size() <= kStamp || line[4] != '-' || line[10] != 'T' || line[kStamp - 2] != 'Z') continue;
    const size_t level_end = line.find(' ', kStamp);
    if (level_end != std::string::npos) last = {line.substr(kStamp, level_end - kStamp), line.substr(level_end + 1)};
  }
  return last;
}

/// The step of `checkpoint/latest`, which is a link to step_N.
json saved_step(const std::string& latest) {
  constexpr std::string_view kPrefix = "step_";
  std::error_code none;
  const std::string target = fs::read_symlink(latest, none).filename().string();
  int64_t step = 0;
  if (none || !target.starts_with(kPrefix)) return nullptr;
  const auto [end, error] = std::from_chars(target.data() + kPrefix.size(), target.data() + target.size(), step);
  return error == std::errc() ? json(step) : json();
}

/// The value that a word of a request names. Errors: UserError naming the words there are.
template <class Value>
Value value_of(const char* parameter, const std::string& word, std::initializer_list<std::pair<const char*, Value>> words) {
  std::string known;
  for (const auto& [name, value] : words) {
    if (word == name) return value;
    if (*name) known += std::string(" ") + name;
  }
  throw UserError(std::string(parameter) + "=" + word, "is none of the words there are", "expected one of" + known);
}

data::SampleOrder order_of(const std::string& word) {
  using enum data::SampleOrder;
  return value_of<data::SampleOrder>("sort", word, {{"", kById}, {"lowest", kLowestScore}, {"highest", kHighestScore},
                                                    {"spread", kWidestSpread}, {"longest", kLongest}});
}

data::AnswerKind kind_of(const std::string& word) {
  using enum data::AnswerKind;
  return value_of<data::AnswerKind>("show", word, {{"", kAll}, {"right", kRight}, {"wrong", kWrong}, {"became_right", kBecameRight},
                                                   {"became_wrong", kBecameWrong}});
}

/// Both kinds of run write the same recipe; a line of `tandem sft` has no policy that generated.
bool is_supervised(const std::string& metrics_line) {
  const json line = parse_or_discard<json>(metrics_line);
  return line.is_object() && !line.contains("policy_version");
}

int64_t num_pages(int64_t rows, int64_t per_page) { return std::max<int64_t>(1, (rows + per_page - 1) / per_page); }

json sample_json(const data::StoredGroup& stored, size_t index) {
  const data::Sample& sample = stored.group.samples[index];
  json parts = json::array();
  for (const auto& [name, number] : sample.parts) parts.push_back({{"name", name}, {"value", number}});
  json out{{"response", sample.text}, {"score", sample.score}, {"advantage", stored.advantages[index]}, {"parts", parts},
           {"tokens", stored.told[index].num_tokens}, {"finish", data::finish_name(sample.finish)},
           {"has_text", stored.told[index].has_tokens}};
  if (stored.told[index].num_tokens == 0) return out;
  out["oldest_version"] = stored.told[index].oldest_version;
  out["newest_version"] = stored.told[index].newest_version;
  return out;
}

json group_json(const data::StoredGroup& stored) {
  json samples = json::array();
  for (size_t i = 0; i < stored.group.samples.size(); ++i) samples.push_back(sample_json(stored, i));
  return {{"id", value(stored.group.id)},          {"row", stored.group.prompt.row},
          {"prompt", stored.group.prompt.text},    {"answer", stored.group.prompt.answer},
          {"version", value(stored.group.version)}, {"lag", data::lag(stored.group, stored.trained_version)},
          {"greedy", stored.group.greedy ? json(stored.group.greedy->score) : json()},
          {"samples", samples}};
}

json answer_json(const data::ComparedAnswer& it, double right_at) {
  const auto said = [&](const data::EvalAnswer& a) {
    return json{{"response", a.response}, {"score", a.score}, {"right", a.score >= right_at}};
  };
  json out = said(it.now);
  out.update({{"row", it.now.row}, {"set", it.now.set}, {"question", it.now.question}});
  out.update({{"prompt", it.now.prompt}, {"answer", it.now.answer}});
  out["before"] = it.before ? said(*it.before) : json();
  return out;
}

}  // namespace

RunFolder::RunFolder(const std::string& folder) : folder_(folder) {
  if (!fs::is_directory(folder)) throw UserError(folder, "no such run folder", "give the folder of a run, such as runs/quickstart");
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

RunFolder::State RunFolder::state() const {
  if (is_held(path(".lock"))) return {"running"};
  if (fs::is_regular_file(path("summary.json"))) return {"finished"};
  std::error_code absent;
  const auto warm_time = fs::last_write_time(path("warm_start/log.txt"), absent);
  const bool ended_warming = !absent && !(fs::last_write_time(path("log.txt"), absent) > warm_time);
  const LogEntry last = last_entry(path(ended_warming ? "warm_start/log.txt" : "log.txt"));
  if (last.level == "error") return {"failed", last.text};
  if (last.level == "info" && last.text.starts_with("stopped ")) return {"stopped", last.text};
  if (fs::is_directory(path("hf"))) return {"finished"};  // a warm start, which has no summary
  return {fs::exists(path("config.yaml")) ? "killed" : "empty"};
}

std::string RunFolder::run() {
  std::lock_guard lock(mutex_);
  index_new_lines();
  const std::string config = file_text(path("config.yaml"));
  const json summary = parse_or_discard<json>(file_text(path("summary.json")));
  const fs::path absolute = fs::weakly_canonical(folder_);
  const State now = state();
  std::error_code absent;
  std::optional<fs::file_time_type> wrote;
  for (const char* name : {"metrics.jsonl", "log.txt", "samples.sqlite-wal", "config.yaml"})
    if (const auto time = fs::last_write_time(path(name), absent); !absent) wrote = std::max(wrote.value_or(time), time);
  const auto unix_s = [](fs::file_time_type time) {
    return std::chrono::duration<double>(std::chrono::file_clock::to_sys(time).time_since_epoch()).count();
  };
  const double steps = option_of(config, is_supervised(last_line_) ? "supervised" : "run", "steps").value_or(0);
  return text_of({{"name", absolute.filename().string()},
                  {"folder", absolute.string()},
                  {"state", now.name},
                  {"error", now.error},
                  {"wrote_unix_s", wrote ? json(unix_s(*wrote)) : json()},
                  {"saved_step", saved_step(path("checkpoint/latest"))},
                  {"total_steps", static_cast<int64_t>(std::clamp(steps, 0.0, 1e15))},
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
  return join_text(R"({"generation":)", generation_, R"(,"from":)", from, R"(,"next":)", next, R"(,"total":)", num_lines_, R"(,"lines":[)",
                   lines, "]}");
}

std::string RunFolder::prometheus() {
  std::lock_guard lock(mutex_);
  index_new_lines();
  if (num_lines_ == 0) return net::exposition({});
  const RegularFile file(path("metrics.jsonl"));
  LineReader reader(file, marks_[marks_.size() - std::min<size_t>(marks_.size(), 2)], end_bytes_);
  std::map<std::string, double> metrics;
  while (reader.next()) {
    const json line = parse_or_discard<json>(reader.line());
    if (!line.is_object()) continue;
    std::map<std::string, double> found;
    for (const auto& [name, value] : line.items())
      if (value.is_number()) found[name] = value.get<double>();
    const auto first = found.lower_bound(std::string(kEvaluation));
    if (first == found.end() || !first->first.starts_with(kEvaluation))  // what the last one found still holds
      for (const auto& [name, value] : metrics)
        if (name.starts_with(kEvaluation)) found.emplace(name, value);
    metrics = std::move(found);
  }
  return net::exposition(metrics);
}

std::string RunFolder::timeline() {
  const std::string file = path("timeline.jsonl");
  json steps = json::array();
  if (fs::is_regular_file(file)) {
    const RegularFile opened(file);
    const int64_t bytes = opened.size_bytes(), from = std::max<int64_t>(0, bytes - kMaxLine_bytes);
    LineReader reader(opened, from, bytes);
    for (bool whole = from == 0; reader.next(); whole = true)
      if (whole && is_metrics(reader.line())) steps.push_back(json::parse(reader.line()));
  }
  while (std::ssize(steps) > kTimelineSteps) steps.erase(0);
  return text_of({{"steps", steps}});
}

std::string RunFolder::steps() {
  json steps = json::array(), evals = json::array();
  if (fs::exists(path("samples.sqlite"))) {
    const data::SampleReader reader(path("samples.sqlite"));
    for (const auto& it : reader.steps())
      steps.push_back({{"step", value(it.step)}, {"groups", it.num_groups}, {"samples", it.num_samples}, {"score", it.mean_score}});
    const double right_at = right_at_of(file_text(path("config.yaml")));
    const std::vector<data::EvalSetSummary> sets = reader.eval_sets(right_at);
    for (const auto& it : reader.eval_steps(right_at)) {
      json of_step = json::array();
      for (const data::EvalSetSummary& set : sets)
        if (set.step == it.step)
          of_step.push_back({{"name", set.name}, {"answers", set.num_answers}, {"accuracy", set.right_share}, {"score", set.mean_score}});
      evals.push_back({{"step", value(it.step)}, {"prompts", it.num_groups}, {"answers", it.num_samples}, {"accuracy", it.right_share},
                       {"score", it.mean_score}, {"sets", std::move(of_step)}});
    }
  }
  return text_of({{"steps", steps}, {"evals", evals}});
}

std::string RunFolder::samples(const PageRequest& request) {
  const data::GroupQuery query{StepId{request.step}, request.search, order_of(request.sort)};
  const data::SampleReader reader(path("samples.sqlite"));
  const int64_t found = reader.num_groups(query), pages = num_pages(found, kGroupsPerPage);
  const int64_t page = std::clamp<int64_t>(request.page, 0, pages - 1);
  json groups = json::array();
  for (const auto& it : reader.groups(query, page * kGroupsPerPage, kGroupsPerPage)) groups.push_back(group_json(it));
  return text_of({{"step", request.step}, {"page", page}, {"pages", pages}, {"found", found}, {"groups", groups}});
}

std::string RunFolder::tokens(int64_t step, int64_t group, int64_t sample) {
  const data::SampleReader reader(path("samples.sqlite"));
  const auto groups = reader.groups({.step = StepId{step}, .group = data::GroupId{group}}, 0, 1);
  if (groups.empty() || sample < 0 || sample >= std::ssize(groups.front().group.samples))
    throw UserError(path("samples.sqlite"), join_text("has no sample ", sample, " of group ", group, " in step ", step),
                    "one that /api/samples has");
  const data::Sample& asked = groups.front().group.samples[static_cast<size_t>(sample)];
  json columns = json::array();
  data::each_list(asked, [&](const auto& column, const auto& list) {
    const bool is_per_token = column.entries == data::Entries::kTokens || column.entries == data::Entries::kTokensOrNone;
    if (is_per_token && !list.empty()) columns.push_back({{"name", column.stored}, {"values", list}});
  });
  const std::vector<float>& trained = groups.front().train_logprobs[static_cast<size_t>(sample)];
  if (!trained.empty()) columns.push_back({{"name", "train_logprobs"}, {"values", trained}});
  return text_of({{"columns", columns}});
}

std::string RunFolder::evals(const AnswersRequest& request) {
  data::AnswerQuery query{StepId{request.page.step}, std::nullopt, right_at_of(file_text(path("config.yaml"))), kind_of(request.show),
                          request.page.search, order_of(request.page.sort)};
  if (request.since) query.since = StepId{*request.since};
  query.set = request.set;
  const data::SampleReader reader(path("samples.sqlite"));
  const data::AnswerCounts counts = reader.counts(query);
  const int64_t pages = num_pages(counts.num_found, kAnswersPerPage);
  const int64_t page = std::clamp<int64_t>(request.page.page, 0, pages - 1);
  json answers = json::array();
  for (const auto& it : reader.compared(query, page * kAnswersPerPage, kAnswersPerPage)) answers.push_back(answer_json(it, query.right_at));
  return text_of({{"step", request.page.step},
                  {"page", page},
                  {"pages", pages},
                  {"found", counts.num_found},
                  {"right_at", query.right_at},
                  {"counts",
                   {{"answers", counts.num_answers},
                    {"right", counts.num_right},
                    {"compared", counts.num_compared},
                    {"became_right", counts.num_became_right},
                    {"became_wrong", counts.num_became_wrong}}},
                  {"answers", answers}});
}

}  // namespace tandem::board
