// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/weight_switch.h"

namespace tandem::rollout {

void switch_weights(Engine* engine, comm::Group& world, const SendWeights& send, data::PolicyVersion version) {
  if (engine) engine->drop_weights();
  const model::ModelParameters* parameters = send();
  world.barrier();  // every rank has all of its bytes
  if (engine) engine->switch_weights(*parameters, version);
}

}  // namespace tandem::rollout
