// SPDX-License-Identifier: Apache-2.0
#include "tandem/python/session/on_rank.h"

#include "tandem/rollout/engine.h"

namespace tandem::session {

OnRank::OnRank(const config::RunConfig& c, comm::Group& world)
    : config(c),
      rank(c, config::layouts_of(c, world.size()), world),
      actor(rank.parts, model::read_config(c.model.path), c.train),
      files(rank.parts, c.run.dir, c.model.path) {
  files.load_start(actor.trained());
}

void OnRank::drop_engine() {
  engine.reset();
  context = 0;
  version.reset();
}

rollout::Engine* OnRank::engine_for(int64_t needed, int64_t num_tokens, data::PolicyVersion now) {
  const bool generates = rank.ranks.rolls_out();
  if (needed > context) {
    drop_engine();
    context = needed;
    if (generates)
      engine = std::make_unique<rollout::Engine>(
          config.rollout.engine, rollout::EngineSetup{actor.rollout_decoder(), rank.memory.device, num_tokens, context});
  }
  if (version != now) {
    rollout::switch_weights(engine.get(), rank.ranks.world, [this] { return actor.send_weights(); }, now);
    version = now;
  }
  return engine.get();
}

}  // namespace tandem::session
