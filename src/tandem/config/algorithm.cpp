// SPDX-License-Identifier: Apache-2.0
#include "tandem/config/algorithm.h"

namespace tandem::config {

algo::Algorithm algorithm_of(const RunConfig& c) {
  const bool other_dtype = !c.rollout.dtype.empty() && c.rollout.dtype != c.model.dtype;
  const bool several = c.algo.mini_batches > 1 || c.algo.epochs > 1;
  const bool of_other_policy = c.staleness() > 0 || other_dtype || several;
  return algo::algorithm_of(c.algo, of_other_policy && c.schedule.old_logprobs != "rollout");
}

bool sampler_is_trainer(const RunConfig& c) { return c.run.parity && c.staleness() == 0; }

OldLogprobs old_logprobs_of(const RunConfig& c, const algo::Algorithm& algorithm) {
  const std::string& word = c.schedule.old_logprobs;
  if (word == "rollout") return {.of_stale_rollout = true, .of_rollout = true};
  if (word == "loglinear") return {.loglinear = true};
  if (word == "recompute") return {.recomputed = true};
  // With several updates on a batch, only the first one's forward pass sees the policy before all of them.
  const bool recomputed =
      algorithm.updates.several() || algorithm.correction.normalize || (algorithm.rewards_tokens() && !sampler_is_trainer(c));
  return {.recomputed = recomputed, .of_stale_rollout = !algorithm.correction.active()};
}

}  // namespace tandem::config
