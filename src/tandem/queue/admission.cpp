// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/admission.h"

#include <algorithm>
#include <vector>

namespace tandem::queue {

bool may_take(const Rule& rule, int64_t version, std::span<const int64_t> remaining_starts) {
  // A group started at s must be trained by the update from s + S at the latest: the j-th update from now (j = 0 the one
  // from version + 1) is the deadline of those with s = version + 1 - S + j. Sorted by deadline, the i-th (from 0) is
  // trained by update i / B, earliest deadline first; all are in time iff none is later than its own.
  std::vector<int64_t> starts(remaining_starts.begin(), remaining_starts.end());
  std::sort(starts.begin(), starts.end());
  for (int64_t i = 0; i < std::ssize(starts); ++i) {
    const int64_t latest = starts[static_cast<size_t>(i)] - (version + 1 - rule.staleness);
    if (i / rule.groups_per_step > latest) return false;
  }
  return true;
}

int64_t Capacity::operator()(int64_t version, int64_t running, int64_t accepted) const {
  const int64_t by_concurrency = std::max<int64_t>(1, max_concurrent) - running;
  const int64_t by_staleness = (max_staleness + version + 1) * std::max<int64_t>(1, batch_size) - (accepted + running);
  return std::min(by_concurrency, by_staleness);
}

}  // namespace tandem::queue
