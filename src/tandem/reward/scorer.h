// SPDX-License-Identifier: Apache-2.0
#pragma once
// Grades groups in threads of its own, beside generation: for rollout (runtime/sample/rollout_role.h) and for evaluation
// (serve/answers.h).

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/data/sample.h"
#include "tandem/monitor/notices.h"
#include "tandem/reward/rule.h"

namespace tandem::reward {

/// How a Scorer works.
struct Grading {
  int64_t workers = 1;         ///< threads
  bool zero_on_error = false;  ///< a sample that cannot be graded scores 0, with the part kFailedPart; else collect throws
  std::shared_ptr<monitor::Notices> notices = std::make_shared<monitor::Notices>();  ///< as BatchOptions have it
};
Grading grading_of(const Options& options);

/// The part of a sample that could not be graded: 1. Its mean over samples is the metric reward/failed.
inline constexpr const char* kFailedPart = "failed";

/// Ownership  groups are moved in and out; uses the rule, which must outlive it. Joins its threads when destroyed;
///            grades in progress are abandoned then.
/// Threads    submit from one thread, collect from one thread (the same or another).
/// Blocking   collect waits, at most until the deadline; nothing else waits.
/// Errors     if a rule throws, or gives a score that is not finite, collect throws UserError (PeerError for one) naming the rule and the
///            group, once. The group stays first, ungraded, and the next collect hands it out as it is.
/// Order      groups come back in the order of submission, whatever the number of threads.
class Scorer {
 public:
  explicit Scorer(const Rule& rule, const Grading& grading = {});
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

  void grade(data::Group& group);
  void end();

  const Rule& rule_;
  const Grading grading_;
  mutable std::mutex mutex_;
  std::condition_variable submitted_, finished_;
  std::deque<Job> jobs_;  // a deque: a job keeps its address while others come and go at the ends
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

/// What a rule is asked about a sample.
Answer answer_of(const data::Group& group, const data::Sample& sample);
/// Grades every sample of a group in place: score, parts, scored. A greedy answer is graded by itself: rules may compare a group's samples.
/// Errors: what the rule throws; UserError for a score that is not finite.
void score_group(const Rule& rule, data::Group& group);
/// The same where what fails scores 0, with the part kFailedPart. Returns the reason of the first failure; "" if there was none.
std::string score_group_or_zero(const Rule& rule, data::Group& group);

}  // namespace tandem::reward
