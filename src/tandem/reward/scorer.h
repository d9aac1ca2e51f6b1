// SPDX-License-Identifier: Apache-2.0
#pragma once
// Grades groups in threads of its own, beside generation: for rollout (runtime/sample/rollout_role.h) and for evaluation
// (serve/answers.h).

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/data/sample.h"
#include "tandem/reward/rule.h"

namespace tandem::reward {

/// Ownership  groups are moved in and out; uses the rule, which must outlive it. Joins its threads when destroyed;
///            grades in progress are abandoned then.
/// Threads    submit from one thread, collect from one thread (the same or another).
/// Blocking   collect waits, at most until the deadline; nothing else waits.
/// Errors     if a rule throws, collect throws UserError (PeerError for one) naming the rule and the group, once. The group
///            stays first, ungraded, and the next collect hands it out as it is.
/// Order      groups come back in the order of submission, whatever the number of threads.
class Scorer {
 public:
  explicit Scorer(const Rule& rule, int64_t num_workers = 1);
  ~Scorer();
  Scorer(const Scorer&) = delete;
  Scorer& operator=(const Scorer&) = delete;

  void submit(data::Group&& group);
  /// The next group if it is graded by then; nullopt if it is not, or none is out.
  std::optional<data::Group> collect(const Deadline& deadline);
  /// All groups that are out. Errors: as collect; PeerError if one takes longer than `patience_s`; Interrupted once `stop` says so.
  std::vector<data::Group> collect_all(double patience_s, const StopRequested& stop = {});
  /// Groups submitted and not yet collected.
  size_t num_pending() const;

 private:
  struct Job {
    data::Group group;
    bool started = false;
    bool done = false;
    std::exception_ptr error;
  };
  void work();
  Job* next_unstarted();
  std::optional<data::Group> take_head(std::unique_lock<std::mutex>& lock);

  const Rule& rule_;
  mutable std::mutex mutex_;
  std::condition_variable submitted_, finished_;
  std::deque<Job> jobs_;  // a deque: a job keeps its address while others come and go at the ends
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

/// What a rule is asked about a sample.
Answer answer_of(const data::Group& group, const data::Sample& sample);
/// Grades every sample of a group in place: score, parts, scored. A greedy answer is graded by itself: rules may compare a group's samples.
void score_group(const Rule& rule, data::Group& group);

}  // namespace tandem::reward
