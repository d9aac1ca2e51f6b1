// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a clock decided in a free run (docs/design/free_mode.md): a line of decisions.jsonl for each update, and its reader for
// --replay-decisions.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/data/sample.h"

namespace tandem::data {

/// Something that a stream of generation was told (rollout/group/stream.h), and when it took effect.
struct Effect {
  enum class Kind : char { kAdmit = 'a', kCancel = 'c', kSwitch = 's', kStand = 'p' } kind;
  int64_t step;  ///< token steps before it
  bool operator==(const Effect&) const = default;
};

/// A group without a token. Its first will be of this version or of a later one.
struct Waiting {
  GroupId id;
  PolicyVersion version;
};

/// What one early pass has (runtime/sample/early_passes.h), by data-parallel rank of those that train.
using EarlyGroups = std::vector<std::vector<GroupId>>;

/// Of one update.
struct Decisions {
  StepId step{};
  std::vector<GroupId> groups;             ///< its batch
  std::vector<int64_t> started;                  ///< replicas of the groups that started since the update before, in their order
  std::vector<std::pair<GroupId, int64_t>> moved;  ///< taken out of the ranks that were to train, and the replicas they went to
  std::vector<EarlyGroups> early;          ///< passes before the batch was complete, in their order
  std::vector<Waiting> waiting;           ///< as SampleQueue::commit was told
  std::vector<GroupId> dropped, filtered;  ///< since the update before
  int64_t started_before = 0, filtered_before = 0;  ///< of these so many before the batch was taken
};

/// By data-parallel rank of the rollout, what took effect in its stream.
using Effects = std::vector<std::vector<Effect>>;

/// A line, with its end. `told` has rollout effects, each list as to_text has it.
std::string to_line(const Decisions& decisions, const std::vector<std::string>& told);
/// What took effect after the line of `step`, and before its checkpoint.
std::string to_line(StepId step, const std::vector<std::string>& told);
/// The first line: the layouts that the run came to, and the steps over which its learning rate goes.
std::string begun_line(const std::string& layouts, int64_t lr_steps);
/// The run went on from its checkpoint of `step`, with streams of their own.
std::string resumed_line(StepId step);

/// "a0a0s12": admitted before token step 0 and once more there, weights 12 steps later. The first counts from the start. "" for none.
std::string to_text(const std::vector<Effect>& effects);
/// Errors: UserError.
std::vector<Effect> effects_of(const std::string& text);

/// Ownership  of what it has read.
/// Errors     UserError naming the file and the line.
class DecisionReader {
 public:
  explicit DecisionReader(const std::string& run_dir);
  /// Steps that can be replayed: up to where the run was resumed first.
  int64_t num_steps() const { return static_cast<int64_t>(steps_.size()); }
  const Decisions& of(StepId step) const { return steps_.at(value(step)); }
  /// As begun_line() had them; "" and 0 where it is not there.
  const std::string& layouts() const { return layouts_; }
  int64_t lr_steps() const { return lr_steps_; }
  /// Of all steps together; one for each replica.
  const Effects& effects() const { return effects_; }
  /// Whether the run dropped it. One that had an early pass is left out: it is finished here, too, and dropped by the same rule.
  bool is_dropped(GroupId group) const { return dropped_.contains(group); }

 private:
  void read(const std::string& line);

  std::map<int64_t, Decisions> steps_;
  Effects effects_;
  std::set<GroupId> dropped_, early_;
  std::string layouts_;
  int64_t lr_steps_ = 0;
};

/// What a free run decides, update by update: noted, or as the run that it follows has it. The same on all ranks.
///
/// Ownership  uses the reader.
/// Threads    one.
/// Errors     UserError where this run comes to something else than the one it follows.
class DecisionLog {
 public:
  /// `followed` is null in a run that decides for itself.
  explicit DecisionLog(const DecisionReader* followed) : followed_(followed) {}

  bool follows() const { return followed_; }
  /// Of so many groups that may start before the next update, how many do.
  int64_t num_to_start(int64_t allowed) const;
  /// Whether the batch of the next update was taken.
  bool is_taken() const { return is_taken_; }
  /// Whether what was to start, to be filtered and to have its early pass has been: before the batch of the next update was taken; and,
  /// once it is, before that update.
  bool is_done_before_batch() const;
  bool is_done_ahead() const;
  /// Where it follows: the batch of the next update, and whether a group may be in one at all.
  std::span<const GroupId> batch() const { return next().groups; }
  bool may_be_put(GroupId group) const { return !followed_ || !followed_->is_dropped(group); }
  /// What SampleQueue::commit is told: `mine`, of all ranks, or what it follows.
  std::vector<Waiting> waiting(std::vector<Waiting> mine) const { return followed_ ? next().waiting : std::move(mine); }

  /// Where the next group starts and a moved one goes: `chosen`, or as it follows.
  int64_t home_of_next(int64_t chosen) const;
  int64_t home_of_moved(GroupId group, int64_t chosen) const;
  /// The next early pass: `planned`, or as it follows, once all its groups are in `finished`, which is in order of ids; none before.
  EarlyGroups early(EarlyGroups planned, std::span<const GroupId> finished) const;
  /// What is taken out of the ranks that are to train: `mine`, of all ranks, or as it follows.
  std::vector<GroupId> to_move(std::vector<GroupId> mine) const;

  void started(int64_t home) { now_.started.push_back(home); }
  void moved(GroupId group, int64_t home) { now_.moved.emplace_back(group, home); }
  void passed_early(EarlyGroups groups) { now_.early.push_back(std::move(groups)); }
  void filtered(GroupId group);
  void took(const Batch& batch);
  void committed(StepId step, std::vector<Waiting> waiting, const std::vector<GroupId>& dropped);
  /// Its next lines of decisions.jsonl, with what took effect in the streams. "" if there is nothing to say.
  std::string take_lines(const std::vector<std::string>& told);

 private:
  bool is_filtered(size_t count) const;
  const Decisions& next() const { return followed_->of(StepId{value(last_step_) + 1}); }

  const DecisionReader* followed_;
  StepId last_step_{};
  bool is_taken_ = false;  // the batch of the next update
  Decisions now_;
  std::set<GroupId> filtered_ever_;
  std::optional<Decisions> unsaid_;
};

}  // namespace tandem::data
