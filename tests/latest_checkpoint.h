// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a run of one rank would go on from.

#include <optional>
#include <string>

#include "tandem/checkpoint/run_state.h"

namespace tandem::checkpoint {

/// The newest checkpoint under `root` whose files all match their manifest; nullopt if there is none at all. Errors: as first_whole.
inline std::optional<CheckpointPlace> find_latest(const std::string& root) {
  return first_whole(root, newest_first(root), [](const CheckpointPlace& place) { return readable_fault(place.path); });
}

}  // namespace tandem::checkpoint
