// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/weight_switch.h"

namespace tandem::rollout {

void switch_weights(Engine* engine, comm::Group& world, const std::function<void()>& move, const NewWeights& weights) {
  if (engine) engine->drop_weights();
  move();
  world.barrier();  // every rank has all of its bytes
  if (engine) engine->switch_weights(*weights.parameters, weights.version);
}

}  // namespace tandem::rollout
