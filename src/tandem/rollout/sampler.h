// SPDX-License-Identifier: Apache-2.0
#pragma once
// Draws one token from one row of logits. Pure: the same row, options and random number give the same token. row_sampler.h calls it, in
// several threads. The ranks of a TP group have the same logits and draw the same.
//
// Ids rank by their logits; of equal logits the lower id is better. top-k keeps the k best ids. top-p keeps the best of those, as few as
// have its share of their mass. No id without mass is drawn. The cost is linear in the vocabulary: nothing sorts it.

#include <cstdint>
#include <span>

#include "tandem/base/error.h"
#include "tandem/rollout/options.h"

namespace tandem::rollout {

struct Drawn {
  int32_t token;
  float logprob;     ///< log_softmax(logits / T)[token] over the full vocabulary; T = 1 when greedy
  float kept_mass;   ///< log of the probability that top-k, top-p and `num_tokens` kept; 0 when everything was kept
};

struct LogitRow {
  std::span<const float* const> shards;  ///< what TP ranks hold of the vocabulary, in order
  int64_t shard_size;                    ///< ids of a shard; the last has what is left, and nobody reads behind it
  int64_t vocab_size;                    ///< ids of the model
  int64_t num_tokens;                    ///< only the first ones may be drawn: the model's rows above are padding

  float operator[](int64_t token) const { return shards[static_cast<size_t>(token / shard_size)][token % shard_size]; }
};

/// The weights give no finite logits.
class NotFinite : public UserError {
 public:
  using UserError::UserError;
};

/// `uniform` lies in [0, 1), with 53 bits. It walks through the ids in order, or with top-k and top-p from the best one on, to where their
/// mass exceeds that share of the whole. Masses add up in fp64, so how the vocabulary is cut does not matter. Errors: NotFinite.
Drawn draw(const LogitRow& row, const Sampling& sampling, double uniform);

}  // namespace tandem::rollout
