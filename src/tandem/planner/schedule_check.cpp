// SPDX-License-Identifier: Apache-2.0
// Which schedules cannot run to their end, and why.
#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/planner/schedule.h"

namespace tandem::planner {
namespace {

const char* name_of(Field field) {
  constexpr const char* kNames[] = {"weights", "a batch", "scores", "reference log-probabilities", "old log-probabilities", "values",
                                    "advantages", "an update of the critic", "an update", "groups generated ahead",
                                    "what other ranks did"};
  return kNames[static_cast<size_t>(field)];
}

class Check {
 public:
  explicit Check(const Schedule& schedule) : schedule_(schedule), n_(static_cast<int>(schedule.stages.size())) {}

  void run() const {
    if (n_ == 0) refuse("has no stage", "at least a source of batches and an update");
    for (int i = 0; i < n_; ++i) check_stage(i);
    if (const std::string cycle = find_cycle(); !cycle.empty()) refuse("has the cycle " + cycle, "an edge of it from an earlier step");
    for (int i = 0; i < n_; ++i) check_order(i);
    for (int i = 0; i < n_; ++i)
      for (Field field : stage(i).reads) check_field(i, field);
    check_roles();
    if (schedule_.repeat) check_repeat(*schedule_.repeat);
  }

 private:
  const Stage& stage(int i) const { return schedule_.stages[static_cast<size_t>(i)]; }
  [[noreturn]] void refuse(const std::string& what, const std::string& right) const {
    throw UserError("schedule " + schedule_.name, what, right);
  }

  void check_stage(int i) const {
    const Stage& s = stage(i);
    if (s.name.empty() || std::ranges::count(schedule_.stages, s.name, &Stage::name) != 1)
      refuse(join_text("has several stages, or none, of the name '", s.name, "'"), "a name for each");
    if (s.role < 0 || s.role >= std::ssize(schedule_.roles)) refuse(s.name + " has no role", "a role of the schedule");
    if (s.ranks.count < 1 || s.ranks.first < 0) refuse(s.name + " has no ranks", "at least one");
    for (const After& a : s.after) {
      if (a.stage < 0 || a.stage >= n_ || a.steps_back < 0) refuse(s.name + " comes after what is no stage", "a stage of the list");
      if (!s.ranks.overlaps(stage(a.stage).ranks))
        refuse(join_text(s.name, " comes after ", stage(a.stage).name, ", and none of its ranks hears when that ends"),
               "a stage of both between them");
    }
  }

  // A rank goes through a step in the order of the list.
  void check_order(int i) const {
    for (const After& a : stage(i).after)
      if (a.steps_back == 0 && a.stage > i) refuse(join_text(stage(i).name, " stands before ", stage(a.stage).name), "the other order");
  }

  // The names along a cycle of edges within a step; empty if there is none.
  std::string find_cycle() const {
    std::vector<int> state(static_cast<size_t>(n_)), path;  // 0: not seen, 1: on the path, 2: done
    for (int i = 0; i < n_; ++i)
      if (const auto found = cycle_from(i, state, path)) return *found;
    return "";
  }
  std::optional<std::string> cycle_from(int i, std::vector<int>& state, std::vector<int>& path) const {
    int& mine = state[static_cast<size_t>(i)];
    if (mine == 2) return std::nullopt;
    path.push_back(i);
    if (mine == 1) {
      std::string names;
      for (auto at = std::ranges::find(path, i); at != path.end(); ++at) names += (names.empty() ? "" : " after ") + stage(*at).name;
      return names;
    }
    mine = 1;
    for (const After& a : stage(i).after) {
      if (a.steps_back > 0) continue;
      if (const auto found = cycle_from(a.stage, state, path)) return found;
    }
    path.pop_back();
    state[static_cast<size_t>(i)] = 2;
    return std::nullopt;
  }

  // Fewest steps back at which `from` comes after `to`; none if it never does.
  std::optional<int64_t> steps_between(int from, int to) const {
    constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
    std::vector<int64_t> distance(static_cast<size_t>(n_), kNever);
    distance[static_cast<size_t>(from)] = 0;
    int64_t back = kNever;
    for (int round = 0; round <= n_; ++round)
      for (int i = 0; i < n_; ++i) {
        if (distance[static_cast<size_t>(i)] == kNever) continue;
        for (const After& a : stage(i).after) {
          const int64_t here = distance[static_cast<size_t>(i)] + a.steps_back;
          if (a.stage == to) back = std::min(back, here);
          int64_t& known = distance[static_cast<size_t>(a.stage)];
          known = std::min(known, here);
        }
      }
    return back == kNever ? std::nullopt : std::optional(back);
  }

  void check_field(int reader, Field field) const {
    bool filled = false;
    for (int filler = 0; filler < n_; ++filler) {
      if (std::ranges::find(stage(filler).fills, field) == stage(filler).fills.end()) continue;
      filled = true;
      check_filled(reader, filler, field);
    }
    if (filled) return;
    refuse(join_text(stage(reader).name, " starves: it reads ", name_of(field), ", and no stage fills them"), "a stage that does");
  }

  void check_filled(int reader, int filler, Field field) const {
    const std::string &who = stage(reader).name, &from = stage(filler).name;
    const std::optional<int64_t> back = steps_between(reader, filler);
    if (!back) refuse(join_text(who, " starves: it reads ", name_of(field), " and does not come after ", from), "an edge to it");
    if (field != Field::kWeights) {
      if (*back != 0) refuse(join_text(who, " reads ", name_of(field), " of an earlier step's ", from), "an edge within the step");
    } else if (*back - 1 > schedule_.staleness) {
      refuse(join_text(who, " may run ", *back - 1, " versions ahead, and the staleness is ", schedule_.staleness),
             join_text("an edge to ", from, " of at most ", schedule_.staleness + 1, " steps ago"));
    }
  }

  void check_roles() const {
    if (!schedule_.has(StageKind::kUpdate)) refuse("trains nothing", "a stage of kind update");
    if (schedule_.has(StageKind::kAhead) && schedule_.staleness == 0)
      refuse("starves: at staleness 0 nothing may be generated ahead", "staleness 1 or more");
    // Batches would pile up, and no rank would ever learn of an update.
    for (int i = 0; i < n_; ++i)
      if (stage(i).kind == StageKind::kRollout || stage(i).kind == StageKind::kReplay)
        for (int j = 0; j < n_; ++j)
          if (stage(j).kind == StageKind::kSwitch && !steps_between(i, j))
            refuse(stage(i).name + " never comes after " + stage(j).name, "an edge to it from an earlier step");
  }

  // Its ranks go through it together: each of them hears whether it goes on.
  void check_repeat(const Repeat& repeat) const {
    if (repeat.first < 0 || repeat.first > repeat.last || repeat.last >= n_) refuse("repeats what are no stages", "stages of the list");
    if (repeat.most < 1) refuse(join_text("repeats ", stage(repeat.last).name, ' ', repeat.most, " times"), "at least 1");
    for (int i = repeat.first; i <= repeat.last; ++i) {
      const Stage &s = stage(i), &last = stage(repeat.last);
      if (s.kind == StageKind::kUpdate || s.kind == StageKind::kMeet || s.kind == StageKind::kSwitch)
        refuse("repeats " + s.name + ", and a batch is trained once", "stages before the update");
      if (s.ranks.first != last.ranks.first || s.ranks.count != last.ranks.count)
        refuse(join_text("repeats ", s.name, " and ", last.name, ", which have other ranks"), "the same ranks");
    }
  }

  const Schedule& schedule_;
  const int n_;
};

}  // namespace

void check(const Schedule& schedule) { Check(schedule).run(); }

}  // namespace tandem::planner
