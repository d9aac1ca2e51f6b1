// SPDX-License-Identifier: Apache-2.0
// A free run under a virtual clock: replicas that never stop and take new weights on a token boundary of their own, one that stands while
// its ranks train and whose groups may move, a trainer, deaths. The lag of every token is bounded, no group is lost or trained twice, and
// the run gets on. Rules weakened on purpose are caught.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/rng.h"
#include "tandem/queue/sample_queue.h"

namespace tandem::queue {
namespace {

constexpr int64_t kFreeUpdates = 12;

// What is wrong on purpose.
struct Weakness {
  bool told_new_version = false;  // waiting groups count as started at the new weights, though the replica may draw with the old
  bool starts_before_switch = false;  // a replica is told of new weights after groups that are noted under them
  bool moved_begin_anew = false;  // groups that moved count as waiting until their new replica has taken them
};

struct Sequence {
  int64_t left;
  std::optional<int64_t> first;  // version of its first token
};

struct Told {
  enum What { kAdmit, kCancel, kSwitch } what;
  int64_t number;
  std::vector<Sequence> sequences = {};
};

/// A stream of generation: one token of each running sequence takes step_s; what it is told takes effect between two tokens.
class Replica {
 public:
  Replica(double step_s, int64_t slots) : step_s_(step_s), slots_(slots) {}

  double next_s = 0;
  bool stands = false;
  std::deque<Told> told;
  std::vector<std::pair<int64_t, int64_t>> finished;  // group and version of its first token

  void step(double now_s) {
    for (; !told.empty(); told.pop_front()) obey(told.front());
    int64_t room = slots_;
    for (auto group = groups_.begin(); group != groups_.end();) {
      for (Sequence& sequence : group->second) {
        if (sequence.left == 0 || room == 0) continue;
        --room;
        if (!sequence.first) sequence.first = version_;
        --sequence.left;
      }
      if (std::ranges::any_of(group->second, [](const Sequence& s) { return s.left > 0; })) {
        ++group;
        continue;
      }
      int64_t first = version_;
      for (const Sequence& s : group->second) first = std::min(first, *s.first);
      finished.emplace_back(group->first, first);
      group = groups_.erase(group);
    }
    next_s = now_s + step_s_;
  }
  // What it has of its groups, each with a chance of one half; they are forgotten here.
  std::map<int64_t, std::vector<Sequence>> take_out(RandomStream& random) {
    std::map<int64_t, std::vector<Sequence>> taken;
    for (auto group = groups_.begin(); group != groups_.end();) {
      if (random.uniform() < 0.5) ++group;
      else taken.insert(groups_.extract(group++));
    }
    return taken;
  }
  int64_t version() const { return version_; }
  std::vector<int64_t> without_token(bool with_moved) const {
    std::vector<int64_t> ids;
    for (const auto& [id, group] : groups_)
      if (!has_token(group)) ids.push_back(id);
    for (const Told& each : told)
      if (each.what == Told::kAdmit && (with_moved || !has_token(each.sequences))) ids.push_back(each.number);
    return ids;
  }

 private:
  static bool has_token(const std::vector<Sequence>& group) {
    return std::ranges::any_of(group, [](const Sequence& s) { return s.first.has_value(); });
  }
  void obey(const Told& one) {
    if (one.what == Told::kAdmit) groups_[one.number] = one.sequences;
    if (one.what == Told::kSwitch) version_ = one.number;
    if (one.what != Told::kCancel) return;
    groups_.erase(one.number);
    std::erase_if(finished, [&](const auto& done) { return done.first == one.number; });
  }

  const double step_s_;
  const int64_t slots_;
  int64_t version_ = 0;
  std::map<int64_t, std::vector<Sequence>> groups_;
};

struct Counted {
  int64_t num_drawn_late = 0;  // groups whose first token is of a version before the one they were started under; must be none
  int64_t num_lagging = 0, num_deaths = 0, num_behind = 0, num_moved = 0;
};

class FreeRun {
 public:
  FreeRun(uint64_t stream, const Weakness& weakness) : random_(20261126, stream), weakness_(weakness) {
    options_ = {.groups_per_step = 1 + number(4), .group_size = 1 + number(3), .staleness = 1 + number(3)};
    options_.lag_policy = number(2) == 0 ? "drop" : "wait";
    num_replicas_ = 1 + number(3);
    first_trains_ = num_replicas_ > 1 && number(2) == 0;
    begin_anew();
  }

  // "" or the first violation.
  std::string violation(Counted& counted) {
    counted_ = &counted;
    try {
      for (int64_t events = 0; value(queue_->version()) < kFreeUpdates; ++events) {
        if (events > 400000) return "no progress";
        if (const std::string found = next_event(); !found.empty()) return found;
        if (random_.uniform() < 0.0005) die();
      }
    } catch (const InternalError& e) {
      return e.what();
    }
    return trained_.size() == static_cast<size_t>(kFreeUpdates * options_.groups_per_step) ? "" : "another number of groups was trained";
  }

 private:
  int64_t number(int64_t below) { return std::min(below - 1, static_cast<int64_t>(random_.uniform() * static_cast<double>(below))); }

  // As the runtime makes it, from a checkpoint or without.
  void begin_anew() {
    queue_.emplace(options_);
    replicas_.clear();
    for (int64_t i = 0; i < num_replicas_; ++i)
      replicas_.emplace_back(std::pow(10, -1 + 2 * random_.uniform()), 1 + number(8)).next_s = now_s_;
    trained_until_s_.reset();
    switch_at_s_.reset();
    again_.clear();
    trained_ = saved_trained_;
    next_ = saved_next_;
    starts_.clear();
    if (!saved_.empty()) {
      again_ = queue_->restore(saved_, [&](data::Group group) {
        starts_[value(group.id)] = value(group.version);
        return group;
      });
    }
    for (Replica& r : replicas_) r.told.push_back({Told::kSwitch, value(queue_->version())});
  }

  void die() {
    ++counted_->num_deaths;
    begin_anew();
  }

  void save() {
    saved_ = queue_->state([](data::Group group) { return group; });
    saved_trained_ = trained_;
    saved_next_ = next_;
  }

  std::string next_event() {
    const auto next = std::ranges::min_element(replicas_, {}, [](const Replica& r) { return std::pair(r.stands, r.next_s); });
    if (switch_at_s_ && *switch_at_s_ <= next->next_s) {  // the weights have arrived
      now_s_ = *std::exchange(switch_at_s_, std::nullopt);
      for (Replica& r : replicas_) r.told.push_back({Told::kSwitch, value(queue_->version())});
      if (std::exchange(replicas_[0].stands, false)) replicas_[0].next_s = now_s_;
      return "";
    }
    if (trained_until_s_ && *trained_until_s_ <= next->next_s) {
      now_s_ = *std::exchange(trained_until_s_, std::nullopt);
      return update();
    }
    now_s_ = next->next_s;
    next->step(now_s_);
    if (number(3) > 0) return "";  // the others hear of it now and then, and not while weights are sent
    if (switch_at_s_ && !weakness_.starts_before_switch) return "";
    hear();
    if (trained_until_s_ || switch_at_s_ || !queue_->batch_ready()) return "";
    const data::Batch batch = queue_->take(StepId{value(queue_->version()) + 1});
    taken_.clear();
    for (const data::Group& group : batch.groups) taken_.push_back(value(group.id));
    trained_until_s_ = now_s_ + std::pow(10, -1 + 3 * random_.uniform());
    if (first_trains_) stand();
    return "";
  }

  // What the replica whose ranks train leaves goes on elsewhere, or waits.
  void stand() {
    replicas_[0].stands = true;
    for (auto& [id, sequences] : replicas_[0].take_out(random_)) {
      replicas_[static_cast<size_t>(1 + number(num_replicas_ - 1))].told.push_back({Told::kAdmit, id, std::move(sequences)});
      ++counted_->num_moved;
    }
  }

  void hear() {
    for (Replica& r : replicas_)
      for (const auto& [id, first] : std::exchange(r.finished, {})) {
        data::Group group{GroupId{id}, {}, PolicyVersion{first}, {}};
        for (int64_t i = 0; i < options_.group_size; ++i) {
          data::Sample& sample = group.samples.emplace_back();
          sample.id = data::sample_id(group.id, options_.group_size, i);
          sample.scored = true;
        }
        starts_[id] = first;
        counted_->num_drawn_late += first < noted_[id];
        queue_->put(std::move(group));
      }
    for (int64_t n = queue_->num_may_start(); n > 0; --n) start();
  }

  void start() {
    const bool again = !again_.empty();
    const int64_t id = again ? value(again_.front()) : next_++;
    if (again) again_.erase(again_.begin());
    queue_->start(GroupId{id}, queue_->version());
    noted_[id] = value(queue_->version());
    std::vector<Sequence> sequences;
    for (int64_t i = 0; i < options_.group_size; ++i)
      sequences.push_back({static_cast<int64_t>(std::min(400.0, std::pow(1 - random_.uniform(), -1.2))), {}});
    const int64_t first = replicas_[0].stands ? 1 : 0;
    replicas_[static_cast<size_t>(first + number(num_replicas_ - first))].told.push_back({Told::kAdmit, id, sequences});
  }

  std::string update() {
    const int64_t before = value(queue_->version()), after = before + 1;
    for (const int64_t id : taken_) {
      if (before - starts_.at(id) > options_.staleness) return join_text("group ", id, " lags ", before - starts_.at(id));
      counted_->num_lagging += before > starts_.at(id);
      if (!trained_.insert(id).second) return join_text("group ", id, " is trained twice");
    }
    std::vector<data::Waiting> waiting;
    for (const Replica& r : replicas_) {
      counted_->num_behind += r.version() < before;
      for (const int64_t id : r.without_token(weakness_.moved_begin_anew))
        waiting.push_back({GroupId{id}, PolicyVersion{weakness_.told_new_version ? after : r.version()}});
    }
    const Left left = queue_->commit(StepId{after}, PolicyVersion{after}, waiting);
    for (const GroupId id : left.all()) {
      if (trained_.contains(value(id))) return join_text("group ", value(id), " is trained and dropped");
      for (Replica& r : replicas_) r.told.push_back({Told::kCancel, value(id)});
    }
    switch_at_s_ = now_s_ + std::pow(10, -2 + 2 * random_.uniform());
    if (queue_->num_outstanding() > (options_.staleness + 1) * options_.groups_per_step) return "more outstanding than the gate allows";
    if (number(3) == 0) save();
    return "";
  }

  RandomStream random_;
  const Weakness weakness_;
  Options options_;
  int64_t num_replicas_ = 1;
  bool first_trains_ = false;
  Counted* counted_ = nullptr;
  double now_s_ = 0;
  std::optional<SampleQueue> queue_;
  std::vector<Replica> replicas_;
  std::optional<double> trained_until_s_, switch_at_s_;
  std::vector<int64_t> taken_;
  std::vector<GroupId> again_;
  std::map<int64_t, int64_t> starts_, noted_;  // version of a finished group's first token; under which it was started
  std::set<int64_t> trained_, saved_trained_;
  int64_t next_ = 0, saved_next_ = 0;
  std::vector<std::byte> saved_;
};

TEST(FreeRun, KeepsTheBoundUnderRandomLengthsSpeedsAndDeaths) {
  Counted counted;
  for (uint64_t i = 0; i < 3000; ++i) ASSERT_EQ(FreeRun(i, {}).violation(counted), "") << "stream " << i;
  EXPECT_EQ(counted.num_drawn_late, 0);
  EXPECT_GT(counted.num_lagging, 1000) << "nothing lagged, so nothing was tested";
  EXPECT_GT(counted.num_deaths, 1000);
  EXPECT_GT(counted.num_moved, 1000);
  EXPECT_GT(counted.num_behind, 100) << "no replica was ever behind";
}

TEST(FreeRun, AReplicaThatDrawsWithOlderWeightsThanItSaysIsCaught) {
  for (const Weakness& weakness : {Weakness{.told_new_version = true}, Weakness{.starts_before_switch = true},
                                   Weakness{.moved_begin_anew = true}}) {
    Counted counted;
    int num_caught = 0;
    for (uint64_t i = 0; i < 3000; ++i) num_caught += !FreeRun(i, weakness).violation(counted).empty();
    EXPECT_GT(num_caught, 0) << (weakness.told_new_version ? "new version" : weakness.moved_begin_anew ? "moved" : "starts");
  }
}

}  // namespace
}  // namespace tandem::queue
