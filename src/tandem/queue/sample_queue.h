// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where groups wait between generation and training. Bounded by staleness, not by memory. It sends nothing. In a run each rank has one, of
// heads alone (runtime/sample/rollout_role.h). All are equal when a batch is chosen, so ranks choose the same without a word.
//
//   while (step < steps) {                                          // one rank, one thread; all ranks alike
//     for (int64_t n = queue.num_may_start(); n > 0; --n) {
//       queue.start(next_id, queue.version());
//       groups.admit(prompt_of(next_id++));                         // rollout/group/group_assembly.h, above the engine
//     }
//     engine.step();
//     for (data::Group& group : scored(groups.finished())) queue.put(std::move(group));
//     if (!queue.batch_ready()) continue;
//     data::Batch batch = queue.take(data::StepId{++step});
//     train(batch);
//     for (data::GroupId id : queue.commit(batch.step, version_after(batch), waiting(groups))) groups.cancel(id);
//   }

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "tandem/base/ids.h"
#include "tandem/data/decisions.h"
#include "tandem/data/sample.h"
#include "tandem/data/shaping.h"
#include "tandem/queue/options.h"

namespace tandem::queue {

/// What became of groups since the start of the run.
struct Counters {
  int64_t started = 0, trained = 0;
  int64_t dropped = 0;    ///< evicted because their lag would have exceeded the staleness
  int64_t waited = 0;     ///< updates that were held back for a running group
  int64_t late_rows = 0;  ///< samples of groups that arrived after their eviction
  int64_t filtered = 0;   ///< groups whose scores were all alike, where those are filtered
};

/// Groups that left untrained.
struct Left {
  std::vector<GroupId> dropped;   ///< their lag would now be too large; finished or running; by id
  std::vector<GroupId> filtered;  ///< their scores were all alike
  std::vector<GroupId> all() const;
};

/// What a queue takes: groups with scores, or without where a stage scores the batch. Dynamic sampling (Yu et al. 2025, DAPO) wants
/// scores that differ, for others teach nothing; where a stage scores, filter() looks at them.
enum class Takes { kUnscored, kScored, kScoredWithSpread };

/// Ownership  groups are moved in; a taken batch is a copy of groups that stay until commit().
/// Threads    one. Given the same calls in the same order it does the same on every rank.
/// Errors     UserError for options. Never drops a group silently: commit() returns it.
/// Read next  admission.h (the rule), docs/design/staleness.md (why the bound holds).
class SampleQueue {
 public:
  explicit SampleQueue(const Options& options, Takes takes = Takes::kScored, const data::Shaping& shaping = {});

  /// How many groups may start now at `start`, the generator's version; by default the trainer's.
  int64_t num_may_start(std::optional<PolicyVersion> start = {}) const;
  /// Registers a group as outstanding. It draws its first token at `version`, or later: then commit() is told. Requires
  /// num_may_start(version) > 0.
  void start(GroupId id, PolicyVersion version);

  /// Registers a group that a queue elsewhere let start at `version`: the rule is asked there. Requires that it is not outstanding.
  void adopt(GroupId id, PolicyVersion version);
  /// The queue elsewhere is at `version`. Those that wait start at their version, as with commit().
  void follow(PolicyVersion version, std::span<const data::Waiting> waiting);
  /// The group is over elsewhere, finished or not. False if it is not outstanding. Requires that no batch is taken.
  bool evict(GroupId id);

  /// Whether it has all its samples, in order, and if it is `finished` their scores where they are wanted.
  bool fits(const data::Group& group, bool finished = true) const;
  /// The group is finished, and fits. One that was evicted is counted and ignored. Returns false if it is filtered:
  /// it is not outstanding any more, so another may start.
  bool put(data::Group group);
  /// Groups filtered since the last batch was complete, or since a restore.
  int64_t num_filtered() const { return num_filtered_; }
  /// Filtered groups that commit() has yet to return.
  int64_t num_unsaid() const { return std::ssize(filtered_); }
  /// What start() or commit() last said of one that is outstanding.
  PolicyVersion start_of(GroupId id) const { return groups_.at(id).start; }
  /// The samples of a finished group are gone: it runs again. A taken batch that has it is given back. False if it is not outstanding, or
  /// runs anyway.
  bool unfinish(GroupId id);
  /// Whether it has started and was neither trained, evicted nor filtered.
  bool is_outstanding(GroupId id) const { return groups_.contains(id); }
  /// Whether start() was called with it.
  bool knows(GroupId id) const { return id <= newest_ && !waits_to_start_.contains(id); }

  /// Whether take() may be called.
  bool batch_ready();
  /// Under `wait`: the running groups for which an otherwise complete batch waits; empty if there is none.
  std::vector<GroupId> must_wait_for() const;
  /// The batch of `step`, ordered by group id, once. Requires batch_ready().
  data::Batch take(StepId step);
  /// A batch of these instead, which are finished: as an earlier run chose. By id.
  data::Batch take(StepId step, std::span<const GroupId> groups);
  /// Takes::kUnscored: the groups of the taken batch, scored meanwhile. Returns those whose scores are all alike. If there are any they
  /// leave, and the others wait again, with their scores: the step is to be taken anew.
  std::vector<GroupId> filter(StepId step, std::vector<data::Group> scored);
  /// Whether the batch of this step, or of any, is taken and not committed.
  bool has_taken(StepId step) const { return formed_ && formed_->step == step; }
  bool has_taken_any() const { return formed_.has_value(); }
  /// The taken batch will not be trained: its groups wait again, as they were before take(). False if none is taken.
  bool give_back();
  /// The update of `step` is done and led to `after`: its groups leave. Those that wait start at their version. Returns the groups
  /// that left untrained since the last commit.
  Left commit(StepId step, PolicyVersion after, std::span<const data::Waiting> waiting = {});

  /// Makes of a finished group what stands for it elsewhere.
  using Rewrite = std::function<data::Group(data::Group)>;
  /// Finished groups as `saved` rewrites them, the ids of running ones, version and counters. Between commit and the next take.
  std::vector<std::byte> state(const Rewrite& saved = {}) const;
  /// Into a queue that has not started anything; it keeps finished groups as `kept` rewrites them. Returns the running groups of the
  /// saved queue: they are not outstanding any more, start() them again. Errors: PeerError if the bytes are damaged.
  std::vector<GroupId> restore(std::span<const std::byte> bytes, const Rewrite& kept = {});

  /// Groups that wait to be trained, by id.
  std::vector<GroupId> finished() const;
  /// What was put of a finished group.
  const data::Group& group(GroupId id) const { return *groups_.at(id).group; }
  /// Those of them that the next batch would have as things stand: at most groups_per_step(). By id.
  std::vector<GroupId> next_in_line() const;
  int64_t num_finished() const { return num_waiting_; }
  int64_t num_outstanding() const { return std::ssize(groups_); }
  PolicyVersion version() const { return version_; }
  int64_t groups_per_step() const { return rule_.groups_per_step; }
  int64_t group_size() const { return options_.group_size; }
  const Counters& counters() const { return counters_; }

 private:
  struct Entry {
    PolicyVersion start;
    std::optional<data::Group> group = {};  // once it is finished
    bool taken = false;

    bool waits() const { return group && !taken; }
  };
  struct Formed {
    StepId step;
    std::vector<GroupId> groups;
    Starts starts;           // of these groups
    bool held_back = false;  // what take() set back
  };

  std::vector<Outstanding> outstanding() const;  // not those of the formed batch
  Choice choose() const;
  void leave_as_filtered(GroupId id);
  void add(GroupId id, Entry entry);
  void remove(GroupId id);
  void count_start(PolicyVersion start, int64_t more);
  void delay_starts(std::span<const data::Waiting> waiting);

  const Options options_;
  const StalenessRule rule_;
  const Takes takes_;
  const data::Shaping shaping_;
  std::map<GroupId, Entry> groups_;
  Starts starts_;             // of all of them
  int64_t num_waiting_ = 0;   // those that are finished and not taken
  std::optional<Formed> formed_;
  PolicyVersion version_{0};
  GroupId newest_{-1};
  bool held_back_ = false;
  Counters counters_;
  int64_t num_filtered_ = 0;
  std::vector<GroupId> filtered_;      // since the last commit
  std::set<GroupId> waits_to_start_;   // running groups of a restored state
};

}  // namespace tandem::queue
