// SPDX-License-Identifier: Apache-2.0
#include "tandem/config/algorithm.h"

namespace tandem::config {

std::vector<std::string> known_differences(const RunConfig& c, bool has_experts) {
  std::vector<std::string> known;
  if (c.staleness() > 0) known.push_back("samples may be of older weights");
  if (c.algo.mini_batches > 1 || c.algo.epochs > 1) known.push_back("a batch has several updates");
  if (c.run.parity) return known;
  if (!c.rollout.dtype.empty() && c.rollout.dtype != c.model.dtype)
    known.push_back("rollout computes in " + c.rollout.dtype + " and training in " + c.model.dtype);
  else if (c.model.dtype == "bfloat16") known.push_back("bfloat16 rounds differently in rollout and in training");
  if (has_experts && !c.schedule.routing_replay)
    known.push_back("training may choose other experts than rollout (schedule.routing_replay)");
  return known;
}

algo::Options resolved_correction(const RunConfig& c, bool has_experts, const std::string& before) {
  using enum algo::Corrects;
  if (c.schedule.old_logprobs == "rollout") return algo::resolved_correction(c.algo, kNot);
  if (c.staleness() > 0) return algo::resolved_correction(c.algo, kByWeightsAndMask);
  const bool corrects = before == "token" || !known_differences(c, has_experts).empty();
  return algo::resolved_correction(c.algo, corrects ? kByWeights : kNot);
}

algo::Algorithm algorithm_of(const RunConfig& c) { return algo::algorithm_of(resolved_correction(c, false)); }

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
