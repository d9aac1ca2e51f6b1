// SPDX-License-Identifier: Apache-2.0
#include "tandem/policy/residency.h"

#include <algorithm>
#include <iterator>

#include "tandem/base/check.h"

namespace tandem::policy {

bool Residency::is_always_here(const planner::Stage& stage) const {
  return std::ranges::none_of(
      parts_, [&](const Part& part) { return std::ranges::find(stage.needs, part.what) != stage.needs.end(); });
}

int64_t Residency::enter(const planner::Stage& stage, const std::function<void()>& before_saved) {
  if (stage.needs.empty()) return 0;
  const auto needed = [&](const Part& part) { return std::ranges::find(stage.needs, part.what) != stage.needs.end(); };
  const auto moves_saved = [&](const Part& part) {
    using enum planner::Resident;
    constexpr planner::Resident kSaved[] = {kTrainWeights, kOptimizer, kCriticWeights, kCriticOptimizer};
    return std::ranges::find(kSaved, part.what) != std::end(kSaved) && needed(part) == part.is_away();
  };
  if (std::ranges::any_of(parts_, moves_saved)) before_saved();
  int64_t copied = 0;
  for (const Part& part : parts_)
    if (!needed(part) && !part.is_away()) copied += part.leave();
  for (const Part& part : parts_)
    if (needed(part) && part.is_away()) {
      TANDEM_CHECK(part.come_back, "stage ", stage.name, " needs what only a switch brings");
      copied += part.come_back();
    }
  return copied;
}

}  // namespace tandem::policy
