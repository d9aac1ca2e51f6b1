// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/sample/sample_source.h"

#include "tandem/base/check.h"
#include "tandem/comm/scalar.h"
#include "tandem/runtime/sample/grades.h"

namespace tandem::runtime {

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
