// SPDX-License-Identifier: Apache-2.0
#pragma once
// One body on every rank of a run, as threads or as processes, each with its share of the cores.

#include <functional>

#include "tandem/comm/group.h"
#include "tandem/config/config.h"

namespace tandem::runtime {

/// Errors: rethrows what the rank that failed first threw; UserError if --ranks contradicts the launcher.
void launch_ranks(const config::RunConfig& config, const std::function<void(comm::Group& world)>& body);

}  // namespace tandem::runtime
