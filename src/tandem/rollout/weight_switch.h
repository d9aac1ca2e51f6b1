// SPDX-License-Identifier: Apache-2.0
#pragma once
// How engines of several ranks come to new weights: all or none of them. The engine drops its weights, `move` sends the new ones. All ranks
// meet in a barrier, then the engine takes them with their version. runtime/stage/stages.cpp:switch_weights gets here through the source.

#include <functional>

#include "tandem/comm/group.h"
#include "tandem/rollout/engine.h"

namespace tandem::rollout {

struct NewWeights {
  const model::ModelParameters* parameters;  ///< null where there is no engine
  data::PolicyVersion version;
};

/// The engine has no version from before `move` writes the first byte of the new weights until every rank of the world has ended its own.
/// If any rank fails before, no engine of the world has a version, and none generates: what they hold is a mixture.
///
/// `engine` is null on a rank that does not generate.
/// Blocking   collective over the world.
/// Errors     what `move` throws on this rank; PeerError where it threw on another.
void switch_weights(Engine* engine, comm::Group& world, const std::function<void()>& move, const NewWeights& weights);

}  // namespace tandem::rollout
