// SPDX-License-Identifier: Apache-2.0
#pragma once
// The algorithm of a run: what its section says, and what the rest of the recipe decides.

#include "tandem/algo/algorithm.h"
#include "tandem/config/config.h"

namespace tandem::config {

/// What is known before a run starts of how the policy that samples differs from the one that trains: a clause for each, such as
/// "bfloat16 rounds differently in rollout and in training"; none where both say the same of a token, but for the rounding of float32.
/// Adapters are no difference: rollout runs them as training does. `has_experts`: of the model; under routing_replay they are none.
std::vector<std::string> known_differences(const RunConfig& config, bool has_experts = false);

/// algo.correction auto as a word, with the off_policy_delta that belongs to it: token where there are known differences, or where
/// `before`, the word of a checkpoint that the run goes on from, corrects; else none. none where old log-probabilities are the rollout's:
/// nothing is then to be corrected. Any other word stays.
algo::Options resolved_correction(const RunConfig& config, bool has_experts, const std::string& before = "");

/// Errors: as algo::algorithm_of.
algo::Algorithm algorithm_of(const RunConfig& config);

/// Whether the rollout's log-probabilities of fresh samples are those of the policy that trains on them, bit for bit.
bool sampler_is_trainer(const RunConfig& config);

/// Where the log-probabilities come from that a ratio is taken against. A row that gets none by this takes the current ones: they are old
/// where a batch has one update.
struct OldLogprobs {
  bool recomputed = false;          ///< by a stage of its own, for rows that do not take the rollout's
  bool of_stale_rollout = false;    ///< the rollout's, for samples of older weights
  bool of_rollout = false;          ///< the rollout's, for all
  bool loglinear = false;           ///< between the rollout's and the current ones, by versions
};
OldLogprobs old_logprobs_of(const RunConfig& config, const algo::Algorithm& algorithm);

}  // namespace tandem::config
