// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/sample/grades.h"

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/scalar.h"

namespace tandem::runtime {
namespace {

// How long a round waits for a grade: a moment while there is generation to go on with, longer when there is not.
constexpr double kMomentS = 0.01, kIdleMomentS = 1.0;

}  // namespace

Grades::Grades(const reward::Rule& rule, const reward::Grading& grading, double timeout_s)
    : rule_(rule), scorer_(rule, grading), timeout_s_(timeout_s) {}

std::vector<data::Group> Grades::collect(bool generating, bool waits) {
  std::vector<data::Group> groups;
  if (fault_) return groups;
  const double begin = now_s();
  try {
    const Deadline moment = Deadline::after_s(generating ? kMomentS : kIdleMomentS);
    while (auto group = scorer_.collect(moment)) groups.push_back(std::move(*group));
    check_wait(waits && groups.empty(), begin);
  } catch (const UserError&) {
    fault_ = std::current_exception();
  } catch (const PeerError&) {  // a server, or a worker
    fault_ = std::current_exception();
  }
  seconds_ += now_s() - begin;
  return groups;
}

// Errors: PeerError.
void Grades::check_wait(bool waits, double begin_s) {
  if (!waits || !pending()) waiting_since_s_ = 0;
  else if (waiting_since_s_ == 0) waiting_since_s_ = begin_s;
  else if (now_s() - waiting_since_s_ > timeout_s_)
    throw PeerError(join_text("reward rule ", rule_.name(), ": ", scorer_.num_pending(), " groups wait for their grades for over ",
                              timeout_s_, " s (schedule.take_timeout_s)"));
}

void tell_notices(comm::Group& world, monitor::Notices& ours, const std::vector<monitor::Notice>& waiting) {
  for (const std::string& bytes : comm::texts_of_all(world, monitor::to_bytes(waiting)))
    if (world.rank() == 0)
      for (const monitor::Notice& notice : monitor::notices_of(bytes)) ours.say(notice.kind, notice.text);
}

queue::Takes takes(const config::RunConfig& config) {
  if (config::scores_in_stage(config)) return queue::Takes::kUnscored;
  return config.algo.filter_groups ? queue::Takes::kScoredWithSpread : queue::Takes::kScored;
}

bool filters_too_many(int64_t num_filtered, const config::RunConfig& config) {
  return num_filtered >= config.algo.max_filter_rounds * config.schedule.queue.groups_per_step;
}

void check_filtered(int64_t num_filtered, const config::RunConfig& config) {
  if (!filters_too_many(num_filtered, config)) return;
  const UserError none("algo.max_filter_rounds",
                       join_text("for one batch of ", config.schedule.queue.groups_per_step, " groups ", num_filtered,
                                 " were replaced, for their scores were all alike"),
                       "prompts that are neither too easy nor too hard, more rounds, or filter_groups: false");
  throw StepFailed(exit_code_of(none), none.what());
}

bool stop_agreed(comm::Group& world, monitor::Notices& notices, const StopRequested& stop, const std::exception_ptr& fault) {
  enum Asks : int64_t { kNothing, kTell, kStop, kEnd };
  const std::vector<monitor::Notice> waiting = notices.take();
  const Asks mine = fault ? kEnd : stop && stop() ? kStop : waiting.empty() ? kNothing : kTell;
  const int64_t asked = comm::max_over(world, static_cast<int64_t>(mine));
  if (asked != kNothing) tell_notices(world, notices, waiting);
  if (asked == kEnd) fail_alike(world, fault);
  return asked == kStop;
}

}  // namespace tandem::runtime
