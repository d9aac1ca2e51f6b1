// SPDX-License-Identifier: Apache-2.0
#pragma once
// What of a rank's memory is on the device in a stage, by the switches of `memory` alone. docs/design/offload.md has the rules.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tandem/config/config.h"
#include "tandem/model/config.h"
#include "tandem/model/layout.h"
#include "tandem/planner/schedule.h"

namespace tandem::fit {

/// As device::Arena::by_owner.
using ByOwner = std::map<std::string, int64_t>;
int64_t sum_of(const ByOwner& by_owner);

/// Whether anything leaves the device, and the KV cache with it.
bool offloads(const config::RunConfig& config);
/// The part of `all` that is on the device in a stage that needs these.
ByOwner on_device(const ByOwner& all, const std::vector<planner::Resident>& needs, const config::RunConfig& config);
/// The part of `all` that has a place on the host, too, since it leaves and comes back.
ByOwner on_host(const ByOwner& all, const config::RunConfig& config);

/// Bytes of a reference's own weights on a rank of training; 0 where the recipe has none.
int64_t reference_bytes(const config::RunConfig& config, const model::Layout& layout, const model::ModelConfig& model);

}  // namespace tandem::fit
