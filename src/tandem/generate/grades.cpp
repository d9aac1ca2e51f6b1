// SPDX-License-Identifier: Apache-2.0
#include "tandem/generate/grades.h"

#include "tandem/base/clock.h"

namespace tandem::generate {
namespace {

// How long a round waits for a grade: a moment while there is generation to go on with, longer when there is not.
constexpr double kGeneratingS = 0.01, kIdleS = 1.0;

}  // namespace

Grades::Grades(const reward::Rule& rule, const reward::Grading& grading, double timeout_s)
    : rule_(rule), scorer_(rule, grading), timeout_s_(timeout_s) {}

std::vector<data::Group> Grades::collect(bool generating, bool waits) {
  std::vector<data::Group> groups;
  if (fault_) return groups;
  const double begin = now_s();
  try {
    const Deadline moment = Deadline::after_s(generating ? kGeneratingS : kIdleS);
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

}  // namespace tandem::generate
