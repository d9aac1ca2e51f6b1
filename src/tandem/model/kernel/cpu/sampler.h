// SPDX-License-Identifier: Apache-2.0
#pragma once
// Draws one token from one row of logits. Pure: the same row, rule and random number give the same token.
//
// Ids rank by their logits; of equal logits the lower id is better. top-k keeps the k best ids. top-p keeps the best of those, as few as
// have its share of their mass. No id without mass is drawn. The cost is linear in the vocabulary: nothing sorts it.

#include <cstdint>
#include <span>

#include "tandem/model/kernel/logit.h"

namespace tandem::model::kernel::cpu {

/// As DrawArgs has it for a draw.
struct DrawRule {
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t top_k = 0;
};

struct LogitRow {
  std::span<const float* const> shards;  ///< what TP ranks hold of the vocabulary, in order
  int64_t shard_size;                    ///< ids of a shard; the last has what is left, and nobody reads behind it
  int64_t vocab_size;                    ///< ids of the model
  int64_t num_tokens;                    ///< only the first ones may be drawn: the model's rows above are padding

  float operator[](int64_t token) const { return shards[static_cast<size_t>(token / shard_size)][token % shard_size]; }
};

/// `uniform` lies in [0, 1), with 53 bits. It walks through the ids in order, or with top-k and top-p from the best one on, to where their
/// mass exceeds that share of the whole. Masses add up in fp64, so how the vocabulary is cut does not matter. Errors: NotFinite.
Drawn draw(const LogitRow& row, const DrawRule& rule, double uniform);

}  // namespace tandem::model::kernel::cpu
