// SPDX-License-Identifier: Apache-2.0
#pragma once
// The first half of planning: who sends what to whom.

#include "tandem/reshard/plan.h"

namespace tandem::reshard {

/// Fills in the mode and the transfers, without buckets, from the fragments and the lower bound of the stats. docs/design/reshard.md has
/// the rules.
void deal(Plan& plan, int num_ranks, Mode mode);

}  // namespace tandem::reshard
