// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where samples wait between stages: a table keyed by sample. Bounded by staleness, not by memory.
//
//   while (step < steps) {                                          // one rank, one thread; all ranks alike
//     for (int64_t n = queue.num_may_start(); n > 0; --n) {
//       queue.start(next_id, queue.version());
//       engine.admit(prompt_of(next_id++));
//     }
//     engine.step();
//     for (data::Group& group : scored(engine.finished())) queue.put(group);
//     if (!queue.batch_ready()) continue;
//     data::Batch batch = *queue.take(data::Stage::kTrain, data::ReplicaId{0}, data::StepId{++step});
//     train(batch);
//     for (data::GroupId id : queue.commit(batch.step, version_after(batch), engine.without_token())) engine.cancel(id);
//   }

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tandem/base/ids.h"
#include "tandem/data/columns.h"
#include "tandem/data/stage.h"
#include "tandem/queue/options.h"

namespace tandem::queue {

/// Which fields must be ready.
struct Needs {
  std::vector<std::string> batch = {"response_ids", "score"};        ///< before a group counts as finished
  std::map<data::Stage, std::vector<std::string>> stage;             ///< what a stage reads besides
};

/// What became of groups since the start of the run.
struct Counters {
  int64_t started = 0, trained = 0;
  int64_t dropped = 0;    ///< evicted because their lag would have exceeded the staleness
  int64_t waited = 0;     ///< updates that were held back for a running group
  int64_t late_rows = 0;  ///< rows that arrived for groups already evicted
};

/// Ownership  rows are moved in; a taken batch is a copy of the rows, which stay until commit().
/// Threads    any; one taker per (stage, replica). Given the same calls in the same order it does the same on every rank.
/// Blocking   take waits until a batch may be formed and its fields are ready, at most take_timeout_s; nothing else waits.
/// Errors     UserError for options, PeerError at the deadline. Never drops a group silently: commit() returns it.
/// Read next  admission.h (the rule), docs/design/staleness.md (why the bound holds).
class SampleQueue {
 public:
  explicit SampleQueue(const Options& options, Needs needs = {});

  /// How many groups may start now at `start`, the generator's version; by default the trainer's.
  int64_t num_may_start(std::optional<PolicyVersion> start = {}) const;
  /// Registers a group as outstanding that will draw its first token at `version`, or later: then commit() is told. Requires
  /// num_may_start(version) > 0.
  void start(GroupId id, PolicyVersion version);

  /// Adds or completes fields of samples, one row per id. False only after close(). Rows of evicted groups are counted and ignored.
  bool put(std::span<const SampleId> ids, const data::Fields& fields);
  bool put(const data::Group& group);

  /// True if take(kTrain or an earlier stage) would form a batch now.
  bool batch_ready();
  /// Under `wait`: the running groups for which an otherwise complete batch waits; empty if there is none.
  std::vector<GroupId> must_wait_for() const;

  /// The batch of `step`, ordered by group id, once; nullopt after close(). The first stage to ask forms the batch, later
  /// ones get the same groups when the fields they need are ready.
  std::optional<data::Batch> take(data::Stage stage, ReplicaId replica, StepId step);
  /// Fields that stages added to samples, rows in the order of `ids`.
  data::Fields read(std::span<const SampleId> ids, std::span<const std::string> names) const;

  /// The update of `step` is done and led to `after`: its groups leave. Groups `without_token` start at `after`. Returns the
  /// groups evicted because their lag would now be too large, finished or running; num_may_start() grew by as many.
  std::vector<GroupId> commit(StepId step, PolicyVersion after, std::span<const GroupId> without_token = {});

  /// Wakes every waiter; later puts return false. Idempotent.
  void close() noexcept;

  /// What stands for the rows of a finished group elsewhere.
  using Rewrite = std::function<data::Fields(data::Fields)>;
  /// Finished groups with all their rows, the ids of running ones, version and counters. `saved` makes the rows of those that the
  /// queue has. Between commit and the next take.
  std::vector<std::byte> state(const Rewrite& saved = {}) const;
  /// Into a queue that has not started anything; it keeps what `kept` makes of a group's rows. Returns the running groups of the saved
  /// queue: they are not outstanding any more, start() them again. Errors: PeerError if the bytes are damaged.
  std::vector<GroupId> restore(std::span<const std::byte> bytes, const Rewrite& kept = {});
  /// Groups that wait to be trained.
  std::vector<GroupId> finished() const;

  PolicyVersion version() const;
  int64_t num_outstanding() const;
  int64_t num_finished() const;
  int64_t groups_per_step() const { return rule_.groups_per_step; }
  Counters counters() const;

 private:
  struct Row {
    data::Fields fields;  // one row each
  };
  struct Entry {
    PolicyVersion start;
    std::vector<Row> rows;  // by index in the group
    bool finished = false;
    bool taken = false;
  };
  struct Formed {
    StepId step;
    std::vector<GroupId> groups;
    std::set<std::pair<data::Stage, ReplicaId>> consumed;
  };

  std::vector<Outstanding> outstanding() const;  // not those of the formed batch
  bool try_form(StepId step);
  bool ready(const Entry& entry, const std::vector<std::string>& names) const;
  data::Batch batch_of(const Formed& formed) const;
  void check_lags(const Formed& formed) const;

  const Options options_;
  const StalenessRule rule_;
  const Needs needs_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<GroupId, Entry> groups_;
  std::optional<Formed> formed_;
  PolicyVersion version_{0};
  GroupId newest_{-1};
  int64_t num_finished_ = 0;
  bool held_back_ = false;
  bool closed_ = false;
  Counters counters_;
};

}  // namespace tandem::queue
