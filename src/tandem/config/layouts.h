// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the options of a run say of its ranks and its stages.

#include "tandem/config/config.h"
#include "tandem/model/layout.h"
#include "tandem/planner/schedule.h"

namespace tandem::config {

/// Who does what on how many ranks.
struct Layouts {
  planner::Placement placement;
  model::Layout train, rollout;
};
/// Of a run of that many ranks. Errors: UserError naming the option.
Layouts layouts_of(const RunConfig& config, int world);

/// As many as parallel.ranks, or as the layouts together have: a recipe for mpirun leaves the number to it.
int planned_ranks(const RunConfig& config);

/// What runs when. `replay`: batches come from an earlier run.
planner::Schedule schedule_of(const RunConfig& config, const Layouts& layouts, bool replay);

}  // namespace tandem::config
