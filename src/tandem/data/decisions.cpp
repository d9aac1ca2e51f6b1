// SPDX-License-Identifier: Apache-2.0
#include "tandem/data/decisions.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"

namespace tandem::data {
namespace {

constexpr const char* kFile = "/decisions.jsonl";

std::string text_of(const nlohmann::json& line) { return line.dump() + "\n"; }

}  // namespace

std::string to_text(const std::vector<Effect>& effects) {
  std::string text;
  int64_t before = 0;
  for (const Effect& effect : effects) {
    text += static_cast<char>(effect.kind) + std::to_string(effect.step - before);
    before = effect.step;
  }
  return text;
}

std::vector<Effect> effects_of(const std::string& text) {
  std::vector<Effect> effects;
  int64_t step = 0;
  for (const char* at = text.data(); at < text.data() + text.size();) {
    int64_t steps = 0;
    const char kind = *at;
    const auto [end, fault] = std::from_chars(at + 1, text.data() + text.size(), steps);
    if (std::string_view("acsp").find(kind) == std::string_view::npos || fault != std::errc() || steps < 0)
      throw UserError("decisions", "'" + text.substr(static_cast<size_t>(at - text.data()), 20) + "' says nothing that a stream is told",
                      "the file as the run wrote it");
    effects.push_back({Effect::Kind{kind}, step += steps});
    at = end;
  }
  return effects;
}

std::string to_line(const Decisions& d, const std::vector<std::string>& told) {
  nlohmann::json line = {{"step", d.step}, {"groups", d.groups}, {"started", d.started}};
  for (const Waiting& each : d.waiting) line["waiting"].push_back({each.id, each.version});
  if (!d.moved.empty()) line["moved"] = d.moved;
  if (!d.early.empty()) line["early"] = d.early;
  if (!d.dropped.empty()) line["dropped"] = d.dropped;
  if (!d.filtered.empty()) line["filtered"] = d.filtered;
  if (d.started_before > 0 || d.filtered_before > 0) line["before"] = {d.started_before, d.filtered_before};
  line["told"] = told;
  return text_of(line);
}

std::string to_line(StepId step, const std::vector<std::string>& told) {
  return text_of({{"after", step}, {"told", told}});
}

std::string begun_line(const std::string& layouts, int64_t lr_steps) {
  return text_of({{"layouts", layouts}, {"lr_steps", lr_steps}});
}

std::string resumed_line(StepId step) { return text_of({{"resumed", step}}); }

DecisionReader::DecisionReader(const std::string& run_dir) {
  const std::string path = run_dir + kFile;
  if (!std::filesystem::exists(path) && std::filesystem::exists(run_dir + "/config.yaml"))
    throw UserError(path, "is not there: in that run no clock decided anything",
                    "a run under schedule.mode free, which must be asked for under --parity");
  std::istringstream lines(RegularFile(path, "the run folder of a run under schedule.mode free").read_whole());
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.starts_with("{\"resumed\"")) break;  // streams of their own; what follows is of them
    try {
      read(line);
    } catch (const nlohmann::json::exception&) {
      throw UserError(path, join_text("line ", number, " is damaged"), "the file as the run wrote it");
    } catch (const UserError& e) {
      throw UserError(path, join_text("line ", number, ": ", e.what()), "the file as the run wrote it");
    }
  }
}

void DecisionReader::read(const std::string& text) {
  const nlohmann::json line = nlohmann::json::parse(text);
  if (line.contains("layouts")) {
    layouts_ = line.at("layouts").get<std::string>();
    lr_steps_ = line.at("lr_steps").get<int64_t>();
    return;
  }
  const auto told = line.at("told").get<std::vector<std::string>>();
  if (effects_.empty()) effects_.resize(told.size());
  const auto check = [](bool fits, const std::string& what) {
    if (!fits) throw UserError("decisions", what, "the file as the run wrote it");
  };
  check(told.size() == effects_.size(), join_text("tells of ", told.size(), " replicas, and the lines before of ", effects_.size()));
  for (size_t replica = 0; replica < told.size(); ++replica)
    for (const Effect& effect : effects_of(told[replica])) effects_[replica].push_back(effect);
  if (!line.contains("step")) return;
  Decisions d;
  line.at("step").get_to(d.step);
  line.at("groups").get_to(d.groups);
  line.at("started").get_to(d.started);
  for (const nlohmann::json& each : line.value("waiting", nlohmann::json::array()))
    d.waiting.push_back({each.at(0).get<GroupId>(), each.at(1).get<PolicyVersion>()});
  d.moved = line.value("moved", d.moved);
  d.early = line.value("early", d.early);
  d.dropped = line.value("dropped", d.dropped);
  d.filtered = line.value("filtered", d.filtered);
  const auto before = line.value("before", std::vector<int64_t>{0, 0});
  check(before.size() == 2, "before has no two numbers");
  d.started_before = before[0], d.filtered_before = before[1];
  const auto is_part = [](int64_t count, const auto& of) { return count >= 0 && count <= std::ssize(of); };
  check(is_part(d.started_before, d.started) && is_part(d.filtered_before, d.filtered), "more came before the batch than in all");
  check(value(d.step) == num_steps() + 1, join_text("step ", value(d.step), " comes after step ", num_steps()));
  const auto is_replica = [&](int64_t home) { return home >= 0 && home < std::ssize(effects_); };
  check(std::ranges::all_of(d.started, is_replica), "a group starts on a replica that there is not");
  check(std::ranges::all_of(d.moved, is_replica, &std::pair<GroupId, int64_t>::second), "a group moves to a replica that there is not");
  check(std::ranges::adjacent_find(d.groups, std::greater_equal()) == d.groups.end(), "the groups of a batch are not in order");
  for (const EarlyGroups& early : d.early)
    check(early.size() == d.early.front().size(), "early passes of different numbers of replicas");
  for (const EarlyGroups& early : d.early)
    for (const std::vector<GroupId>& groups : early) early_.insert(groups.begin(), groups.end());
  std::ranges::copy_if(d.dropped, std::inserter(dropped_, dropped_.end()), [&](GroupId id) { return !early_.contains(id); });
  steps_.emplace(value(d.step), std::move(d));
}

int64_t DecisionLog::num_to_start(int64_t allowed) const {
  if (!followed_) return allowed;
  const int64_t most = is_taken_ ? std::ssize(next().started) : next().started_before;
  return std::clamp<int64_t>(most - std::ssize(now_.started), 0, allowed);
}

bool DecisionLog::is_filtered(size_t count) const {
  return std::ranges::all_of(std::span(next().filtered).first(count), [&](GroupId id) { return filtered_ever_.contains(id); });
}

bool DecisionLog::is_done_before_batch() const {
  return std::ssize(now_.started) >= next().started_before && is_filtered(static_cast<size_t>(next().filtered_before)) &&
         now_.early.size() >= next().early.size();
}

bool DecisionLog::is_done_ahead() const {
  if (!followed_ || !is_taken_) return true;
  return now_.started.size() >= next().started.size() && is_filtered(next().filtered.size());
}

int64_t DecisionLog::home_of_next(int64_t chosen) const { return followed_ ? next().started.at(now_.started.size()) : chosen; }

int64_t DecisionLog::home_of_moved(GroupId group, int64_t chosen) const {
  if (!followed_) return chosen;
  const auto found = std::ranges::find(next().moved, group, &std::pair<GroupId, int64_t>::first);
  if (found == next().moved.end())
    throw UserError("--replay-decisions", join_text("group ", value(group), " moves, and in that run it did not"),
                    "the recipe, the data and the weights of that run");
  return found->second;
}

EarlyGroups DecisionLog::early(EarlyGroups planned, std::span<const GroupId> finished) const {
  if (!followed_) return planned;
  if (now_.early.size() >= next().early.size()) return {};
  const EarlyGroups& groups = next().early[now_.early.size()];
  const auto is_finished = [&](GroupId id) { return std::ranges::binary_search(finished, id); };
  const bool all = std::ranges::all_of(groups, [&](const auto& each) { return std::ranges::all_of(each, is_finished); });
  return all ? groups : EarlyGroups();
}

std::vector<GroupId> DecisionLog::to_move(std::vector<GroupId> mine) const {
  if (!followed_) return mine;
  std::vector<GroupId> ids;
  for (const auto& [id, home] : next().moved) ids.push_back(id);
  return ids;
}

void DecisionLog::filtered(GroupId group) {
  now_.filtered.push_back(group);
  if (followed_) filtered_ever_.insert(group);
}

void DecisionLog::took(const Batch& batch) {
  now_.groups.clear();
  for (const Group& group : batch.groups) now_.groups.push_back(group.id);
  now_.started_before = std::ssize(now_.started), now_.filtered_before = std::ssize(now_.filtered);
  is_taken_ = true;
}

void DecisionLog::committed(StepId step, std::vector<Waiting> waiting, const std::vector<GroupId>& dropped) {
  if (followed_ && dropped != next().dropped)
    throw UserError("--replay-decisions", join_text("step ", value(step), " drops ", dropped.size(), " groups, and that run dropped ",
                                                    next().dropped.size(), ", or others"),
                    "the recipe, the data and the weights of that run");
  now_.step = last_step_ = step;
  now_.waiting = std::move(waiting);
  now_.dropped = dropped;
  unsaid_ = std::exchange(now_, {});
  is_taken_ = false;
}

std::string DecisionLog::take_lines(const std::vector<std::string>& told) {
  if (unsaid_) return to_line(*std::exchange(unsaid_, std::nullopt), told);
  const bool is_silent = std::ranges::all_of(told, [](const std::string& each) { return each.empty(); });
  return is_silent ? "" : to_line(last_step_, told);
}

}  // namespace tandem::data
