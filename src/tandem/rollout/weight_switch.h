// SPDX-License-Identifier: Apache-2.0
#pragma once
// How engines of several ranks come to new weights: all or none of them. The engine drops its weights, `send` brings the new ones. All ranks
// meet in a barrier, then the engine takes them with their version. runtime/stage/stages.cpp:switch_weights gets here through the source.

#include <functional>

#include "tandem/comm/group.h"
#include "tandem/rollout/engine.h"

namespace tandem::rollout {

/// Moves weights to where rollout has them. Gives those that it generates with from then on; null on a rank that does not generate.
using SendWeights = std::function<const model::ModelParameters*()>;

/// The engine has no version from before `send` writes the first byte of the new weights until every rank of the world has ended its own.
/// If any rank fails before, no engine of the world has a version, and none generates: what they hold is a mixture.
///
/// `engine` is null on a rank that does not generate.
/// Blocking   collective over the world.
/// Errors     what `send` throws on this rank; PeerError where it threw on another.
void switch_weights(Engine* engine, comm::Group& world, const SendWeights& send, data::PolicyVersion version);

}  // namespace tandem::rollout
