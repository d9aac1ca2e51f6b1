// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/step_failed.h"

#include "tandem/base/error.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/scalar.h"

namespace tandem::runtime {
namespace {

comm::Fault fault_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const StepFailed& e) {
    return {e.exit_code, e.what()};
  } catch (const std::exception& e) {
    return {exit_code_of(e), e.what()};
  } catch (...) {
    return {exit_code_of(InternalError("")), what_of(error)};
  }
}

}  // namespace

void fail_alike(comm::Group& group, const std::exception_ptr& fault) {
  const std::optional<comm::Fault> first = comm::first_fault(group, fault ? std::optional(fault_of(fault)) : std::nullopt);
  if (first) throw StepFailed(first->exit_code, first->what);
}

void fail_alike(comm::Group& group, const std::function<void()>& work) {
  std::exception_ptr fault;
  try {
    work();
  } catch (const UserError&) {
    fault = std::current_exception();
  }
  fail_alike(group, fault);
}

void end_saved(const StepFailed& failed, int64_t step, const std::function<void()>& save) {
  const std::string ended = join_text("the run ended after step ", step);
  std::string where = ended + ", which is saved; --resume goes on from there";
  try {
    save();
  } catch (const PeerError& e) {
    where = ended + ", which could not be saved (" + e.what() + "); --resume goes on from the checkpoint before, if there is one";
  }
  if (failed.exit_code == 2) throw UserError(where, failed.what(), "");
  if (failed.exit_code == 3) throw PeerError(where + ": " + failed.what());
  throw InternalError(where + ": " + failed.what());
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
