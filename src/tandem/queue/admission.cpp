// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/admission.h"

#include <algorithm>

namespace tandem::queue {
namespace {

std::vector<Outstanding> earliest_first(std::span<const Outstanding> groups) {
  std::vector<Outstanding> sorted(groups.begin(), groups.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const Outstanding& a, const Outstanding& b) { return a.start != b.start ? a.start < b.start : a.id < b.id; });
  return sorted;
}

}  // namespace

int64_t num_may_start(const StalenessRule& rule, int64_t version, int64_t start, std::span<const Outstanding> groups) {
  Starts starts;
  for (const Outstanding& group : groups) ++starts[group.start];
  return num_may_start_beside(rule, version, start, starts);
}

int64_t num_may_start_beside(const StalenessRule& rule, int64_t version, int64_t start, const Starts& starts) {
  if (version - start > rule.staleness) return 0;
  int64_t outstanding = 0, room = rule.max_outstanding();
  for (const auto& [at, count] : starts) outstanding += count;
  room -= outstanding;
  // A new group counts for every j with start <= version - S + j. From j = S on the gate above is sharper.
  for (int64_t j = rule.staleness - (version - start); j < rule.staleness; ++j) {
    int64_t due = 0;
    for (auto at = starts.begin(); at != starts.end() && at->first <= version - rule.staleness + j; ++at) due += at->second;
    room = std::min(room, (j + 1) * rule.groups_per_step - due);
  }
  return std::max<int64_t>(0, room);
}

Choice choose_batch(const StalenessRule& rule, int64_t version, std::span<const Outstanding> groups) {
  Choice choice;
  std::vector<Outstanding> remaining;
  for (const Outstanding& group : earliest_first(groups)) {
    if (group.finished && std::ssize(choice.batch) < rule.groups_per_step)
      choice.batch.push_back(group.id);
    else
      remaining.push_back(group);
  }
  std::sort(choice.batch.begin(), choice.batch.end());
  if (std::ssize(choice.batch) < rule.groups_per_step) return {};
  if (rule.policy == LagPolicy::kDrop) return choice;

  // A group started at s must be trained by the update from s + S at the latest. The remaining groups stand in order of that
  // deadline. The i-th of them (from 0) is trained i / B updates after the next. All are in time iff none misses its deadline.
  for (int64_t i = 0; i < std::ssize(remaining); ++i) {
    const int64_t due = remaining[static_cast<size_t>(i)].start;
    if (i / rule.groups_per_step <= due - (version + 1 - rule.staleness)) continue;
    // The finished ones due by then are in the batch already, so those up to here that remain are running.
    for (const Outstanding& group : remaining)
      if (group.start <= due) choice.wait_for.push_back(group.id);
    std::sort(choice.wait_for.begin(), choice.wait_for.end());
    choice.batch.clear();
    break;
  }
  return choice;
}

std::vector<GroupId> too_stale(const StalenessRule& rule, int64_t version, std::span<const Outstanding> groups) {
  std::vector<GroupId> ids;
  if (rule.policy == LagPolicy::kDrop)
    for (const Outstanding& group : groups)
      if (version - group.start > rule.staleness) ids.push_back(group.id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace tandem::queue
