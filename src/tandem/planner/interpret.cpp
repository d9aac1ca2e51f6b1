// SPDX-License-Identifier: Apache-2.0
#include "tandem/planner/interpret.h"

#include <algorithm>

#include "tandem/base/check.h"

namespace tandem::planner {
Interpreter::Interpreter(Schedule schedule, Steps steps, std::optional<int> rank)
    : schedule_(std::move(schedule)), steps_(steps), rank_(rank), ended_(schedule_.stages.size(), steps.first - 1),
      running_(schedule_.stages.size(), false) {
  check(schedule_);
}

bool Interpreter::takes_part(int stage) const {
  return !rank_ || schedule_.stages[static_cast<size_t>(stage)].ranks.has(*rank_);
}

// Whether each of its ranks is idle and has come to it: stages that share a rank go in one order.
bool Interpreter::is_next(int stage) const {
  const int64_t step = ended_[static_cast<size_t>(stage)] + 1;
  for (int other = 0; other < std::ssize(schedule_.stages); ++other) {
    if (other == stage || !takes_part(other)) continue;
    const auto o = static_cast<size_t>(other);
    if (!schedule_.stages[o].ranks.overlaps(schedule_.stages[static_cast<size_t>(stage)].ranks)) continue;
    if (running_[o]) return false;
    const int64_t due = other < stage ? step : step - 1;  // the last step of `other` that comes before
    if (ended_[o] < due) return false;
  }
  return true;
}

bool Interpreter::edges_ended(int stage, int64_t step) const {
  return std::ranges::all_of(schedule_.stages[static_cast<size_t>(stage)].after, [&](const After& after) {
    return !takes_part(after.stage) || ended_[static_cast<size_t>(after.stage)] >= std::max(step - after.steps_back, steps_.first - 1);
  });
}

std::vector<StageRun> Interpreter::may_start() const {
  std::vector<StageRun> all;
  for (int i = 0; i < std::ssize(schedule_.stages); ++i) {
    const int64_t step = ended_[static_cast<size_t>(i)] + 1;
    if (!takes_part(i) || running_[static_cast<size_t>(i)] || step > steps_.last) continue;
    if (is_next(i) && edges_ended(i, step)) all.push_back({i, step});
  }
  return all;
}

void Interpreter::start(StageRun run) {
  const std::vector<StageRun> allowed = may_start();
  TANDEM_CHECK(std::ranges::find(allowed, run) != allowed.end(), stage(run).name, " of step ", run.step, " may not start");
  running_[static_cast<size_t>(run.stage)] = true;
}

void Interpreter::end(StageRun run) {
  const auto i = static_cast<size_t>(run.stage);
  TANDEM_CHECK(running_[i] && run.step == ended_[i] + 1, stage(run).name, " of step ", run.step, " has not started");
  running_[i] = false;
  ended_[i] = run.step;
  if (schedule_.repeat && run.stage == schedule_.repeat->last) num_repeated_ = 0;
}

void Interpreter::repeat(StageRun run) {
  const std::optional<Repeat>& repeat = schedule_.repeat;
  TANDEM_CHECK(repeat && run.stage == repeat->last, stage(run).name, " ends no repeat");
  TANDEM_CHECK(num_repeated_ + 1 < repeat->most, stage(run).name, " of step ", run.step, " has run ", repeat->most, " times");
  const int64_t repeated = num_repeated_ + 1;
  end(run);
  num_repeated_ = repeated;
  for (int i = repeat->first; i <= repeat->last; ++i) ended_[static_cast<size_t>(i)] = run.step - 1;
}

bool Interpreter::done() const { return done_with(steps_.last); }

bool Interpreter::done_with(int64_t step) const {
  for (int i = 0; i < std::ssize(schedule_.stages); ++i)
    if (takes_part(i) && ended_[static_cast<size_t>(i)] < step) return false;
  return true;
}

namespace {

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

std::string range_text(const RankRange& r) {
  return r.count == 1 ? join_text("rank ", r.first) : join_text("ranks ", r.first, " to ", r.first + r.count - 1);
}

// What every rank of some ranks does, one entry a time slot: a stage and its step, or nothing.
std::vector<std::vector<std::string>> slots_of(const Schedule& schedule, int64_t steps, const std::vector<int>& ranks) {
  std::vector<std::vector<std::string>> rows(ranks.size());
  Interpreter machine(schedule, {1, steps});
  while (!machine.done()) {
    const std::vector<StageRun> started = machine.may_start();
    TANDEM_CHECK(!started.empty(), schedule.name, " has come to a stop");
    for (size_t r = 0; r < ranks.size(); ++r) {
      std::string& cell = rows[r].emplace_back();
      for (StageRun run : started)
        if (machine.stage(run).ranks.has(ranks[r])) cell = join_text(machine.stage(run).name, ' ', run.step);
    }
    for (StageRun run : started) machine.start(run);
    for (StageRun run : started) machine.end(run);
  }
  return rows;
}

std::string waits_of(const Schedule& schedule, const Stage& stage) {
  std::string text;
  for (const After& after : stage.after) {
    text += (text.empty() ? "after " : ", ") + schedule.stages[static_cast<size_t>(after.stage)].name;
    if (after.steps_back > 0) text += join_text(" of ", after.steps_back, after.steps_back == 1 ? " step" : " steps", " before");
  }
  return text.empty() ? "at once" : text;
}

}  // namespace

std::string timeline(const Schedule& schedule, int64_t steps) {
  std::vector<RankRange> groups;  // ranks that do the same
  for (const Stage& stage : schedule.stages) {
    const auto same = [&](const RankRange& r) { return r.first == stage.ranks.first && r.count == stage.ranks.count; };
    if (std::ranges::none_of(groups, same)) groups.push_back(stage.ranks);
  }
  std::erase_if(groups, [&](const RankRange& r) {  // those that hold others: each of their ranks is in a smaller one
    return std::ranges::any_of(groups, [&](const RankRange& o) { return o.count < r.count && o.overlaps(r); });
  });
  std::ranges::sort(groups, {}, &RankRange::first);
  std::vector<int> firsts;
  size_t label = 0;
  for (const RankRange& r : groups) firsts.push_back(r.first), label = std::max(label, range_text(r).size());
  const auto rows = slots_of(schedule, steps, firsts);
  std::string text = join_text(to_text(schedule), '\n');
  for (size_t r = 0; r < rows.size(); ++r) {
    text += padded(range_text(groups[r]), label) + " |";
    for (size_t slot = 0; slot < rows[r].size(); ++slot) {
      size_t width = 0;
      for (const auto& row : rows) width = std::max(width, row[slot].size());
      text += " " + padded(rows[r][slot], width) + " |";
    }
    text += "\n";
  }
  size_t name = 0, ranks = 0;
  for (const Stage& s : schedule.stages) name = std::max(name, s.name.size()), ranks = std::max(ranks, range_text(s.ranks).size());
  for (const Stage& s : schedule.stages)
    text += padded(s.name, name) + "  " + padded(range_text(s.ranks), ranks) + "  " + waits_of(schedule, s) + "\n";
  if (const std::optional<Repeat>& repeat = schedule.repeat)
    text += join_text(schedule.stages[static_cast<size_t>(repeat->first)].name, " to ",
                      schedule.stages[static_cast<size_t>(repeat->last)].name,
                      " again until each group of the batch has spread, at most ", repeat->most, " times in a step\n");
  return text;
}

}  // namespace tandem::planner
