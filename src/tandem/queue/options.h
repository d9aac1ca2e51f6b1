// SPDX-License-Identifier: Apache-2.0
#pragma once
// Settings of the sample queue.

#include <cstdint>
#include <string>

#include "tandem/base/options.h"
#include "tandem/queue/admission.h"

namespace tandem::queue {

struct Options {
  int64_t groups_per_step = 16;
  int64_t group_size = 8;
  int64_t staleness = 0;
  std::string lag_policy = "drop";
  double take_timeout_s = 1800;

  StalenessRule staleness_rule() const { return {groups_per_step, staleness, lag_policy == "wait" ? LagPolicy::kWait : LagPolicy::kDrop}; }
};

inline void describe(OptionVisitor& field, Options& o) {
  field("groups_per_step", o.groups_per_step, "Prompts whose groups train one step.", at_least(1));
  field("group_size", o.group_size, "Responses per prompt.", at_least(1));
  field("staleness", o.staleness, "Updates a group may lag behind when it is trained; 0 is synchronous.", at_least(0));
  field("lag_policy", o.lag_policy, "What keeps stragglers within the staleness: drop evicts them, wait holds the update back.",
        one_of({"drop", "wait"}));
  field("take_timeout_s", o.take_timeout_s, "Seconds after which waiting for grades alone is an error.", above(0));
}

}  // namespace tandem::queue
