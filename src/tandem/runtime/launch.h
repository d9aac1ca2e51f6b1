// SPDX-License-Identifier: Apache-2.0
#pragma once
// One body on every rank of a run, as threads or as processes, each with its share of the cores.

#include <functional>
#include <string>

#include "tandem/comm/group.h"
#include "tandem/config/config.h"

namespace tandem::runtime {

/// What the command line says beside the recipe.
struct HowStarted {
  bool resume, overwrite;
  std::string replay, replay_decisions;  ///< run folders, or ""
};

/// Ranks that are processes read recipe, data and models for themselves. Compares digests of what they found: the resolved recipe and
/// `how`, the files of data, replayed samples and reward code, the files of each model. Of a file beyond 1 GiB it reads parts.
/// Collective; threads of one process have nothing to compare.
/// Errors: UserError naming the ranks that differ from rank 0, in which of these, and the options. The same on all ranks.
void check_same_start(const config::RunConfig& config, const HowStarted& how, comm::Group& world);

/// Errors: rethrows what the rank that failed first threw; UserError if --ranks contradicts the launcher.
void launch_ranks(const config::RunConfig& config, const std::function<void(comm::Group& world)>& body);

}  // namespace tandem::runtime
