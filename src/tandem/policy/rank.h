// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one rank of a run has before any role: peers, memory, what it computes with, and where numbers go.

#include "tandem/policy/compute.h"
#include "tandem/policy/ranks.h"

namespace tandem::policy {

/// The same, for those who use it.
struct RunParts {
  const config::RunConfig& config;
  const Ranks& ranks;
  Memory& memory;
  Compute& compute;
  monitor::Recorder& recorder;
};

/// Ownership  owns all but the config and the world.
struct Rank {
  /// `known`: products of a warm start. Collective.
  Rank(const config::RunConfig& config, const config::Layouts& layouts, comm::Group& world, const model::Products& known = {})
      : ranks(layouts, world),
        memory(config.memory, device_of(config, world)),
        compute(config, world, known, memory.device.device()),
        parts{config, ranks, memory, compute, recorder} {}
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  Ranks ranks;
  Memory memory;
  Compute compute;
  monitor::Recorder recorder;
  RunParts parts;
};

}  // namespace tandem::policy
