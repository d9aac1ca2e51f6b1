// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who generates what, where workers come, go and die: the sample queue with leases. A value with rules: it knows no clock, thread, socket
// or other rank, and time comes in as an argument.
//
//   worker   join --> lease --> beat, beat ... --> put          a lease that is not renewed ends, and another worker gets the group
//   trainer  batch_ready --> take --> commit                    as of sample_queue.h, which it asks
//
// A group is leased to one worker at a time, each time under another number. What bears another number than the group's is late: it
// changes nothing. So whatever comes twice, or from a worker that was given up, is trained once.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tandem/queue/sample_queue.h"

namespace tandem::queue {

/// A controller from its start to its end. One that goes on from a checkpoint has a higher number than all before. Below 2^31.
enum class Incarnation : int64_t {};
/// One that generates. Never used again in a run.
enum class WorkerId : int64_t {};
/// One turn of a group with a worker. Never used again in a run.
enum class LeaseNumber : int64_t {};
constexpr LeaseNumber kNoLease{-1};

struct Lease {
  GroupId group{};
  LeaseNumber number{};
  LeaseNumber begun = kNoLease;  ///< under which tokens of it were reported (Standing): it goes on with them

  bool operator==(const Lease&) const = default;
  static void each(auto& m, auto&& field) { field(m.group), field(m.number), field(m.begun); }
};

/// What a worker says of a lease that it has.
struct Standing {
  GroupId group{};
  LeaseNumber lease{};
  bool has_token = false;     ///< some sample of the group has its first token
  bool is_reported = false;   ///< its tokens so far lie where another worker can read them, under this lease

  static void each(auto& m, auto&& field) { field(m.group), field(m.lease), field(m.has_token), field(m.is_reported); }
};

struct LeaseTerms {
  double lease_s = 30;           ///< for which a lease lasts from the last sign of life of its worker
  Incarnation incarnation{0};    ///< so that its numbers are others than those of controllers before
};

/// What became of leases since the start of the run.
struct LeaseCounters {
  int64_t leased = 0;      ///< groups, each time
  int64_t finished = 0;    ///< groups, each time
  int64_t ended = 0;       ///< leases that were not renewed, or whose worker left
  int64_t late = 0;        ///< groups that came under a lease that had ended
  int64_t lost = 0;        ///< finished groups whose bodies are gone
};

/// One of the things that a controller decided, and what it is about; what does not apply is not set.
struct Decision {
  enum class What { kLeased, kEnded, kFinished, kLost, kDropped, kFiltered, kTaken, kGivenBack, kCommitted };
  What what{};
  GroupId group{};
  LeaseNumber lease = kNoLease;
  WorkerId worker{};
  StepId step{};
  PolicyVersion version{};
};

/// A worker, as its calls show it.
struct WorkerState {
  WorkerId id{};
  double seen_s = 0;         ///< when it gave its last sign of life
  PolicyVersion version{};   ///< with whose weights it asked last
  int64_t speaks_for = 0;    ///< workers that generate; 0: it asked for no lease yet
  int64_t leases = 0;
};

/// Ownership  heads alone; bodies never pass through it.
/// Threads    one. Given the same calls in the same order it does the same.
/// Errors     as SampleQueue. What an unknown worker asks for, it does not get; it has to join.
/// Read next  sample_queue.h, docs/design/dist_queue.md
class Controller {
 public:
  Controller(const Options& options, const LeaseTerms& terms, Takes takes = Takes::kScored, const data::Shaping& shaping = {});

  /// Hears each decision, in their order, within the call that makes it.
  using Hears = std::function<void(const Decision&)>;
  void tell(Hears hears) { hears_ = std::move(hears); }

  WorkerId join(double now_s);
  /// A sign of life. False if nobody knows the worker.
  bool hear_of(WorkerId worker, double now_s) { return alive(worker, now_s) != nullptr; }
  /// Its leases end.
  void leave(WorkerId worker);

  /// At most so many groups for a worker with the weights of `version`: those that another left, by id, then new ones. None that it would
  /// give tokens of an older version than they began with. None for a version that there is not. No more than its share of all that run
  /// or may start, so that others have something to do, too: one that speaks for several has the shares of all.
  std::vector<Lease> lease(WorkerId worker, int64_t most, PolicyVersion version, double now_s, int64_t speaks_for = 1);
  /// The worker lives, has `version`, and its leases stand like this; those that it does not name end. Returns the groups among them that
  /// it does not have any more: evicted, or another's since.
  std::vector<GroupId> beat(WorkerId worker, PolicyVersion version, std::span<const Standing> leases, double now_s);
  /// Its group is finished. False if that is late: then its body is of no use.
  bool put(WorkerId worker, LeaseNumber lease, data::Group head);
  /// Ends the leases of workers that gave no sign of life for lease_s, and forgets those workers.
  std::vector<WorkerId> expire(double now_s);
  /// Bodies of finished groups are gone with who had them: they are generated anew. A taken batch that has one is given back.
  void lose(std::span<const GroupId> groups);

  bool batch_ready() { return starts_ && queue_.batch_ready(); }
  data::Batch take(StepId step);
  /// As SampleQueue::give_back.
  void give_back();
  /// As SampleQueue::commit. Groups that surely have no token yet start at the version that their first will be of.
  Left commit(StepId step, PolicyVersion after);

  const SampleQueue& queue() const { return queue_; }
  const LeaseCounters& lease_counters() const { return counters_; }
  /// As SampleQueue::state; a lease is no part of it.
  std::vector<std::byte> state(const SampleQueue::Rewrite& saved = {}) const { return queue_.state(saved); }
  /// As SampleQueue::restore, into one that leased nothing. New groups begin with `next`.
  void restore(std::span<const std::byte> bytes, GroupId next, const SampleQueue::Rewrite& kept = {});
  GroupId next_group() const { return next_; }
  std::vector<WorkerState> workers() const;

 protected:
  struct Worker {
    double seen_s = 0;
    int64_t speaks_for = 0;   // workers that generate: it has asked for leases
    int64_t wanted = 0;       // when it last asked: so many more, with the weights of this version
    PolicyVersion version{};
    std::map<GroupId, LeaseNumber> leases;
  };
  int64_t rest_of_share(const Worker& worker, int64_t all) const;
  // Of each group that runs, or waits to.
  struct Turn {
    LeaseNumber lease = kNoLease;            // or it waits for a worker
    WorkerId worker{};
    bool has_token = false;
    LeaseNumber reported = kNoLease;
    PolicyVersion first{};                   // leased and without a token: of what version that will be at least
  };
  void decide(const Decision& decision) const {
    if (hears_) hears_(decision);
  }
  void end_lease(GroupId group);
  void forget(GroupId group);
  std::vector<data::Waiting> without_token(PolicyVersion next) const;
  Worker* alive(WorkerId worker, double now_s);

  const LeaseTerms terms_;
  const int64_t first_number_;
  bool starts_ = true;  // new groups, by the staleness rule
  Hears hears_;
  SampleQueue queue_;
  std::map<WorkerId, Worker> workers_;
  std::map<GroupId, Turn> turns_;
  std::set<GroupId> waiting_;   // of those, the ones without a lease
  GroupId next_{0};
  int64_t num_workers_ever_ = 0, num_generating_ = 0;
  LeaseCounters counters_;
};

/// A controller below another: its groups and its versions come from there, and what is finished goes there. It starts no group, and has no
/// batches: the staleness rule is asked above.
/// Read next  worker/relay.h
class Follower final : public Controller {
 public:
  Follower(const Options& options, const LeaseTerms& terms, Takes takes = Takes::kScored) : Controller(options, terms, takes) {
    starts_ = false;
  }

  /// A group waits for a worker with weights of `start` or later. `lease` is the one from above, and says whether tokens are there.
  /// Requires that it is not outstanding.
  void adopt(const Lease& lease, PolicyVersion start);
  /// They are over, finished or not: workers hear it at their next beat.
  void evict(std::span<const GroupId> groups);
  /// Above it is `version`. Returns the groups that surely have no token yet, each with the version that its first will be of at least.
  std::vector<data::Waiting> follow(PolicyVersion version);

  struct Wanted {
    int64_t groups = 0;       ///< beside those that wait
    PolicyVersion version{};  ///< that all who want them have
    int64_t workers = 1;      ///< that generate, at least this
  };
  /// What workers asked for and did not get since the last call: those with the newest weights that anyone asked with.
  Wanted take_wanted();
};

}  // namespace tandem::queue
