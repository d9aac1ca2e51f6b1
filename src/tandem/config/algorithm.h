// SPDX-License-Identifier: Apache-2.0
#pragma once
// The algorithm of a run: what its section says, and what the rest of the recipe decides.

#include "tandem/algo/algorithm.h"
#include "tandem/config/config.h"

namespace tandem::config {

/// With algo.correction auto, token weights wherever the sampled policy may not be the trained one: under staleness, with a rollout in
/// another dtype, with several updates on a batch; none where old log-probabilities are the rollout's. Errors: as algo::algorithm_of.
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
