// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/top_text.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <vector>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/strings.h"

namespace tandem::cli {
namespace {

using nlohmann::json;

std::string with_digits(double value, int digits) {
  std::string text(64, '\0');
  text.resize(static_cast<size_t>(std::max(0, std::snprintf(text.data(), text.size(), "%.*f", digits, value))));
  return text;
}

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

std::optional<double> metric(const json& line, const std::string& name) {
  const auto found = line.find(name);
  return found != line.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

// A stage of a rank in the last step, in milliseconds.
struct Stage {
  std::string name;
  double begin, end, waited;
};

std::vector<Stage> stages_of(const json& rank) {
  std::vector<Stage> stages;
  if (!rank.is_array()) return stages;
  for (const json& one : rank)
    if (one.is_array() && one.size() == 4 && one[0].is_string() && one[1].is_number() && one[2].is_number() && one[3].is_number())
      stages.push_back({terminal_text(one[0].get<std::string>()), one[1].get<double>(), one[2].get<double>(), one[3].get<double>()});
  return stages;
}

// A letter for each stage: its own, unless another has it.
class Letters {
 public:
  char of(const std::string& stage) {
    if (const auto found = letters_.find(stage); found != letters_.end()) return found->second;
    std::string candidates = stage;
    for (const char c : stage) candidates += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    const auto is_free = [&](char c) {
      return std::isalpha(static_cast<unsigned char>(c)) && std::ranges::none_of(letters_, [&](const auto& l) { return l.second == c; });
    };
    const auto found = std::ranges::find_if(candidates, is_free);
    return letters_[stage] = found == candidates.end() ? '?' : *found;
  }
  std::string legend() const {
    std::string text;
    for (const auto& [stage, letter] : letters_) text += join_text(text.empty() ? "" : "  ", letter, ' ', stage);
    return text;
  }

 private:
  std::map<std::string, char> letters_;
};

// Where it worked its letter, where it waited a dot: at the end of a stage, for the others come later.
std::string bar(const std::vector<Stage>& stages, double length, size_t width, Letters& letters) {
  std::string text(width, ' ');
  for (const Stage& stage : stages) {
    const char letter = letters.of(stage.name);
    for (size_t at = 0; at < width; ++at) {
      const double middle = (static_cast<double>(at) + 0.5) / static_cast<double>(width) * length;
      if (middle >= stage.begin && middle < stage.end) text[at] = middle < stage.end - stage.waited ? letter : '.';
    }
  }
  return text;
}

// Of the other ranks that go through a stage, the one that waited least there: it came last to where they meet. "" if there is none.
std::string last_of(const json& ranks, const std::string& rank, const Stage& stage) {
  std::string found;
  double least = stage.waited;
  for (const auto& [name, other] : ranks.items())
    for (const Stage& each : stages_of(other))
      if (name != rank && each.name == stage.name && each.waited < least) found = name, least = each.waited;
  return found;
}

std::string ranks_text(const json& line, const json& ranks, int64_t width) {
  double length = 1;
  for (const json& rank : ranks)
    for (const Stage& stage : stages_of(rank)) length = std::max(length, stage.end);
  std::string text;
  Letters letters;
  constexpr size_t kNames = 9, kIdle = 11;
  const auto room = static_cast<size_t>(std::max<int64_t>(20, width - 64));
  std::vector<std::string> names;
  for (const auto& [name, rank] : ranks.items()) names.push_back(name);
  std::ranges::sort(names, {}, [](const std::string& name) { return std::pair(name.size(), name); });  // rank 2 before rank 10
  for (const std::string& name : names) {
    const json& rank = ranks.at(name);
    const std::vector<Stage> stages = stages_of(rank);
    const auto most = std::ranges::max_element(stages, {}, &Stage::waited);
    const std::optional<double> idle = metric(line, "idle/rank_" + name.substr(name.find(' ') + 1));
    text += padded(terminal_text(name), kNames) + padded(idle ? join_text("idle ", with_digits(100 * *idle, 0), " %") : "", kIdle) + "|" +
            bar(stages, length, room, letters) + "|";
    if (most != stages.end() && most->waited >= 1) {
      const std::string other = terminal_text(last_of(ranks, name, *most));
      text += join_text(" waits ", with_digits(most->waited / 1e3, 2), " s in ", most->name, other.empty() ? "" : " for ", other);
    }
    text += "\n";
  }
  if (text.empty()) return text;
  const bool waits = text.find('.') != std::string::npos;
  return text + std::string(kNames + kIdle, ' ') + letters.legend() + (waits ? "  . waits" : "") + "\n";
}

std::string workers_text(const json& workers) {
  if (!workers.is_object()) return "";
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto& [name, how] : workers.items())
    if (how.is_string()) all.emplace_back(terminal_text(name), terminal_text(how.get<std::string>()));
  std::ranges::sort(all, {}, [](const auto& each) { return std::pair(each.first.size(), each.first); });
  constexpr size_t kMost = 32, kNames = 11;
  std::string text;
  for (size_t i = 0; i < std::min(all.size(), kMost); ++i) text += padded(all[i].first, kNames) + all[i].second + "\n";
  return all.size() > kMost ? join_text(text, "and ", all.size() - kMost, " workers more\n") : text;
}

std::string queue_text(const json& line) {
  constexpr std::pair<const char*, const char*> kStates[] = {{"queue/waiting", "wait for a token"}, {"queue/running", "run"},
                                                             {"queue/scoring", "are being scored"}, {"queue/depth", "finished"}};
  const std::optional<double> outstanding = metric(line, "queue/outstanding");
  if (!outstanding) return "";
  std::string text = join_text("groups   ", with_digits(*outstanding, 0), " under way"), separator = ": ";
  for (const auto& [name, what] : kStates)
    if (const auto count = metric(line, name)) text += join_text(std::exchange(separator, ", "), with_digits(*count, 0), ' ', what);
  for (const auto& [name, what] : {std::pair("staleness/dropped", "dropped in all"),
                                   std::pair("staleness/waited", "updates waited for one"),
                                   std::pair("data/groups_filtered", "filtered")})
    if (const auto count = metric(line, name); count && *count > 0) text += join_text(", ", with_digits(*count, 0), ' ', what);
  text += "\nlag      ";
  for (const auto& [name, count] : line.items()) {
    constexpr std::string_view kLag = "staleness/lag_";
    if (name.starts_with(kLag) && std::isdigit(static_cast<unsigned char>(name[kLag.size()])) && count.is_number())
      text += join_text(name.substr(kLag.size()), ": ", with_digits(count.get<double>(), 0), "   ");
  }
  return trimmed(text) + "\n";
}

std::string speed_text(const json& line) {
  std::string text;
  constexpr std::pair<const char*, const char*> kSpeeds[] = {{"throughput/tokens_per_s", "the whole step"},
                                                             {"throughput/rollout_tokens_per_s", "rollout"},
                                                             {"throughput/train_tokens_per_s", "training"}};
  for (const auto& [name, what] : kSpeeds)
    if (const auto speed = metric(line, name)) text += join_text(text.empty() ? "tokens/s " : ", ", with_digits(*speed, 0), ' ', what);
  return text.empty() ? "" : text + "\n";
}

std::string whole_text(const json& run, const json& metrics, const json& timeline, int64_t width) {
  const json empty = json::object();
  const json& lines = metrics.at("lines");
  const json& line = lines.empty() ? empty : lines.back();
  std::string text = join_text(terminal_text(run.value("name", "")), "   ", run.value("state", ""));
  const auto total = metric(run, "total_steps"), step = metric(line, "step"), seconds = metric(line, "time/step_s");
  text += join_text("   step ", with_digits(step.value_or(0), 0), total ? "/" + with_digits(*total, 0) : "");
  if (seconds) text += join_text("   ", with_digits(*seconds, 2), " s a step");
  if (const auto reward = metric(line, "reward/mean")) text += join_text("   reward ", with_digits(*reward, 3));
  text += "\n";
  if (run.contains("error") && run.at("error").is_string() && !run.at("error").get<std::string>().empty())
    text += terminal_text(run.at("error").get<std::string>()) + "\n";
  if (line.empty()) return text + "No step has ended yet.\n";
  const json& steps = timeline.at("steps");
  if (!steps.empty() && steps.back().is_object() && steps.back().value("ranks", empty).is_object())
    text += ranks_text(line, steps.back().value("ranks", empty), width) + workers_text(steps.back().value("workers", empty));
  return text + queue_text(line) + speed_text(line);
}

}  // namespace

std::string top_text(const json& run, const json& metrics, const json& timeline, int64_t width) {
  std::istringstream lines(whole_text(run, metrics, timeline, width));
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    auto size = std::min(line.size(), static_cast<size_t>(std::max<int64_t>(width, 1)));
    while (size < line.size() && size > 0 && (line[size] & 0xC0) == 0x80) --size;  // no character is cut
    text += line.substr(0, size) + "\n";
  }
  return text;
}

}  // namespace tandem::cli
