// SPDX-License-Identifier: Apache-2.0
#include "tandem/planner/simulate.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/planner/homes.h"
#include "tandem/planner/interpret.h"

namespace tandem::planner {
namespace {

struct Sequence {
  int64_t group, left, tokens;  // left to draw; of the prompt and those that are drawn
};

struct Replica {
  bool is_alone = false;               // on ranks that never train
  bool is_open = true;
  double now_s = 0, busy_s = 0;
  int64_t version = 0;                 // of its weights
  std::vector<Sequence> running;
  std::deque<Sequence> waiting;
  Turns turns;                         // where it opens and closes
  int64_t drawn = 0;                   // since it opened
};

struct Group {
  int64_t start;
  int64_t unfinished;
  bool has_token = false, is_taken = false;
};

// Replicas under the staleness rule. Times are those of one clock.
class Generation {
 public:
  Generation(const Workload& w, const Replicas& r, const Costs& costs)
      : w_(w), r_(r), costs_(costs), homes_(r.placement, r.layout), replicas_(static_cast<size_t>(r.layout.dp)) {
    for (int rank = 0; rank < r.layout.world(); ++rank)
      replicas_[static_cast<size_t>(r.layout.dp_rank(rank))].is_alone = !r.placement.train.has(r.placement.rollout.first + rank);
  }

  // Until a batch may be taken, from `now_s` on; returns when that is. All replicas generate meanwhile.
  double until_batch(double now_s) {
    open(now_s, true);
    double at_s = now_s;
    while (true) {
      const queue::Choice choice = queue::choose_batch(w_.rule, version_, outstanding());
      if (!choice.batch.empty()) {
        for (const GroupId id : choice.batch) groups_.at(value(id)).is_taken = true;
        break;
      }
      start_groups(false);  // where a batch is ready at once, the next groups start beside training
      at_s = std::max(at_s, r_.is_free ? next_step(std::numeric_limits<double>::infinity()) : round(at_s, false));
    }
    open(at_s, false);
    if (r_.is_free && std::ranges::any_of(replicas_, &Replica::is_alone)) move_groups();
    return at_s;
  }

  // Of the stage `ahead`: until as many groups are finished as a batch has, or nothing is left to generate. Returns when it ends.
  double until_enough(double now_s) {
    double at_s = now_s;
    while (num_finished() < w_.rule.groups_per_step) {
      start_groups(true);
      if (std::ranges::none_of(replicas_, [](const Replica& r) { return r.is_alone && is_busy(r); })) break;
      at_s = round(at_s, true);
    }
    return at_s;
  }

  // What those that never stop do until then.
  void until(double end_s) {
    start_groups(true);
    while (next_step(end_s) < end_s) start_groups(true);
  }

  // The batch that was taken is trained, and there are new weights.
  void commit() {
    std::erase_if(groups_, [&](const auto& each) {
      if (each.second.is_taken) homes_.forget(GroupId{each.first});
      return each.second.is_taken;
    });
    ++version_;
    for (auto& [id, group] : groups_)
      if (!group.has_token) group.start = r_.is_free ? std::max(group.start, replica_of(id).version) : version_;
    for (Replica& replica : replicas_) replica.version = version_;
    for (const GroupId id : queue::too_stale(w_.rule, version_, outstanding())) drop(value(id));
  }

  std::vector<double> take_busy_s() {
    std::vector<double> busy;
    for (Replica& replica : replicas_) busy.push_back(std::exchange(replica.busy_s, 0));
    return busy;
  }

 private:
  static bool is_busy(const Replica& r) { return !r.running.empty() || !r.waiting.empty(); }

  Replica& replica_of(int64_t group) { return replicas_[static_cast<size_t>(homes_.of(GroupId{group}))]; }

  void open(double now_s, bool is_open) {
    for (Replica& r : replicas_) {
      if (r.is_alone && r_.is_free) continue;
      r.is_open = is_open;
      if (is_open) r.turns.open(now_s), r.now_s = now_s, r.drawn = 0;
      else r.turns.close(now_s, r.drawn);
    }
  }

  // Those that a closed replica had better give away.
  void move_groups() {
    for (Replica& r : replicas_) {
      if (r.is_alone) continue;
      std::map<int64_t, int64_t> tokens;  // by group
      for (const Sequence& s : r.running) tokens[s.group] += s.tokens;
      for (const Sequence& s : r.waiting) tokens[s.group] += s.tokens;
      for (const auto& [id, count] : tokens)
        if (r.turns.is_better_moved(count)) move(r, id);
    }
  }

  // Where it goes on its tokens are computed anew. That is a part of some token step, as prompts are, and so of what those take.
  void move(Replica& from, int64_t id) {
    homes_.set(GroupId{id}, homes_.least_busy(true));
    Replica& to = replica_of(id);
    const auto take = [&](auto& some) {
      for (const Sequence& s : some)
        if (s.group == id) to.waiting.push_back(s);
      std::erase_if(some, [&](const Sequence& s) { return s.group == id; });
    };
    take(from.running);
    take(from.waiting);
    to.now_s = std::max(to.now_s, from.turns.closed_s());
  }

  std::vector<queue::Outstanding> outstanding(bool with_taken = false) const {
    std::vector<queue::Outstanding> all;
    for (const auto& [id, group] : groups_)
      if (with_taken || !group.is_taken) all.push_back({GroupId{id}, group.start, group.unfinished == 0});
    return all;
  }

  int64_t num_finished() const {
    return std::ranges::count_if(groups_, [](const auto& each) { return each.second.unfinished == 0 && !each.second.is_taken; });
  }

  void start_groups(bool beside_training) {
    for (int64_t n = queue::num_may_start(w_.rule, version_, version_, outstanding(true)); n > 0; --n) {
      const int64_t id = next_++;
      homes_.set(GroupId{id}, r_.is_free ? homes_.least_busy(beside_training) : homes_.round(GroupId{id}));
      groups_[id] = {version_, w_.group_size};
      for (int64_t i = id * w_.group_size; i < (id + 1) * w_.group_size; ++i)
        replica_of(id).waiting.push_back({id, w_.lengths[static_cast<size_t>(i) % w_.lengths.size()], w_.prompt_tokens});
    }
  }

  // A token for each running sequence of a replica; returns when it has them.
  double step(Replica& r) {
    while (!r.waiting.empty() && std::ssize(r.running) < w_.max_running) {
      r.running.push_back(r.waiting.front());
      r.waiting.pop_front();
    }
    const double cost_s = costs_.token_step_s(std::ssize(r.running));
    r.now_s += cost_s, r.busy_s += cost_s, r.drawn += std::ssize(r.running);
    for (Sequence& s : r.running) {
      ++s.tokens;
      const auto group = groups_.find(s.group);
      if (group == groups_.end()) continue;
      group->second.has_token = true;
      if (--s.left == 0 && --group->second.unfinished == 0) homes_.finish(GroupId{s.group});
    }
    std::erase_if(r.running, [](const Sequence& s) { return s.left == 0; });
    return r.now_s;
  }

  // Of all replicas, or those that are alone: some token steps each, then they wait for each other.
  double round(double now_s, bool of_those_alone) {
    double end_s = now_s;
    for (Replica& r : replicas_) {
      if (of_those_alone && !r.is_alone) continue;
      r.now_s = now_s;
      for (int64_t n = 0; n < r_.round_steps && is_busy(r); ++n) end_s = std::max(end_s, step(r));
    }
    TANDEM_CHECK(end_s > now_s, "nothing is left to generate, and no batch is ready");
    return end_s;
  }

  // Of the replica that is first, unless it would begin after `end_s`; returns its time, or that.
  double next_step(double end_s) {
    Replica* next = nullptr;
    for (Replica& r : replicas_)
      if (r.is_open && is_busy(r) && (!next || r.now_s < next->now_s)) next = &r;
    if (!next || next->now_s >= end_s) {
      TANDEM_CHECK(next || end_s < std::numeric_limits<double>::infinity(), "nothing is left to generate, and no batch is ready");
      for (Replica& r : replicas_)
        if (r.is_open && !is_busy(r)) r.now_s = std::max(r.now_s, end_s);  // it rests
      return end_s;
    }
    for (Replica& r : replicas_)
      if (r.is_open && !is_busy(r)) r.now_s = std::max(r.now_s, next->now_s);
    return step(*next);
  }

  void drop(int64_t id) {
    Replica& r = replica_of(id);
    std::erase_if(r.running, [&](const Sequence& s) { return s.group == id; });
    std::erase_if(r.waiting, [&](const Sequence& s) { return s.group == id; });
    groups_.erase(id);
    homes_.forget(GroupId{id});
  }

  const Workload& w_;
  const Replicas& r_;
  const Costs& costs_;
  Homes homes_;
  std::vector<Replica> replicas_;
  std::map<int64_t, Group> groups_;
  int64_t version_ = 0, next_ = 0;
};

double cost_of(const Costs& costs, const Stage& stage) {
  const auto found = costs.stage_s.find(stage.name);
  return found == costs.stage_s.end() ? 0 : found->second;
}

}  // namespace

Simulated simulate(const Schedule& schedule, const Workload& workload, const Replicas& replicas, const Costs& costs, const Course& course) {
  TANDEM_CHECK(course.counted >= 1 && course.counted < course.steps, course.counted, " of ", course.steps, " steps");
  TANDEM_CHECK(!workload.lengths.empty(), "nothing to generate");
  Interpreter machine(schedule, {1, course.steps});
  Generation generation(workload, replicas, costs);
  Simulated all;
  std::map<double, StageRun> running;  // by its end
  double now_s = 0, counted_from_s = 0;
  const auto end_of = [&](const Stage& stage, double begin_s) {
    switch (stage.kind) {
      case StageKind::kRollout: return generation.until_batch(begin_s);
      case StageKind::kAhead: return replicas.is_free ? begin_s : generation.until_enough(begin_s);
      default: return begin_s + cost_of(costs, stage);
    }
  };
  while (!machine.done()) {
    for (const StageRun run : machine.may_start()) {
      machine.start(run);
      double end_s = end_of(machine.stage(run), now_s);
      while (running.contains(end_s)) end_s = std::nextafter(end_s, std::numeric_limits<double>::infinity());
      running.emplace(end_s, run);
    }
    TANDEM_CHECK(!running.empty(), schedule.name, " has come to a stop");
    const auto [end_s, run] = *running.begin();
    running.erase(running.begin());
    now_s = end_s;
    const Stage& stage = machine.stage(run);
    if (replicas.is_free) generation.until(now_s);
    if (stage.kind == StageKind::kSwitch) generation.commit();
    machine.end(run);
    all.order.push_back(join_text(stage.name, ' ', run.step));
    if (!machine.done_with(run.step)) continue;
    now_s += costs.between_s;
    if (run.step == course.steps - course.counted) counted_from_s = now_s, (void)generation.take_busy_s();
  }
  const double seconds = now_s - counted_from_s;
  all.step_s = seconds / static_cast<double>(course.counted);
  for (const double busy_s : generation.take_busy_s()) all.generating_share.push_back(busy_s / seconds);
  return all;
}

}  // namespace tandem::planner
