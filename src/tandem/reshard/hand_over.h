// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which memory a switch takes and gives, bucket by bucket. A chunk of the target gets memory before the first bucket that writes it.
// A chunk of the source leaves after the last bucket that reads it.

#include <utility>
#include <vector>

#include "tandem/device/swappable.h"
#include "tandem/model/parameters.h"
#include "tandem/reshard/plan.h"

namespace tandem::reshard {

/// A rank's weights on one side of a switch.
struct WeightsMemory {
  const model::ParameterTable& table;
  device::Swappable& memory;
};

struct HandOver {
  using Chunk = int64_t;
  std::vector<std::vector<Chunk>> come;   ///< by bucket: of the target
  std::vector<std::vector<Chunk>> leave;  ///< by bucket: of the source
};

/// Chunks that no bucket writes come, and those that none reads leave, with the first bucket; all of them if there is none.
HandOver hand_over(const RankPlan& plan, const WeightsMemory& source, const WeightsMemory& target);

}  // namespace tandem::reshard
