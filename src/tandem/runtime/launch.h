// SPDX-License-Identifier: Apache-2.0
#pragma once
// One body on every rank of a run, as threads or as processes, each with its share of the cores.

#include <functional>

#include "tandem/comm/group.h"
#include "tandem/config/config.h"

namespace tandem::runtime {

/// Ranks that are processes read recipe, data and start for themselves. Compares digests of what they found: the resolved recipe with the
/// command line's `how`, the files of data and reward code, the files of the model to start from. Of a file beyond 1 GiB it reads
/// parts. Collective; threads of one process have nothing to compare.
/// Errors: UserError naming the ranks that differ from rank 0, in which of the three, and the options. The same on all ranks.
void check_same_start(const config::RunConfig& config, const std::string& how, comm::Group& world);

/// Errors: rethrows what the rank that failed first threw; UserError if --ranks contradicts the launcher.
void launch_ranks(const config::RunConfig& config, const std::function<void(comm::Group& world)>& body);

}  // namespace tandem::runtime
