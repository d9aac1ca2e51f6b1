// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a training step asks of a model, in floating point operations: as others count it, and what is needed.

#include <cstdint>

#include "tandem/model/config.h"

namespace tandem::model {

/// Sequences, as far as their cost goes.
struct TokenWork {
  double tokens = 0;
  double squares = 0;  ///< of the lengths: twice the pairs of a query and a key that it sees

  /// A sequence of `length` tokens of which another one computes the first `shared`.
  void add(int64_t length, int64_t shared = 0) {
    const auto all = static_cast<double>(length), before = static_cast<double>(shared);
    tokens += all - before;
    squares += all * all - before * before;
  }
};

/// As verl counts: forward and backward, 6 for each token and parameter of a product it meets, the embedding counted as one and of the
/// experts those it is sent to; and for attention, which is causal, 3 for each layer, head, square and dimension of a key and of a value.
/// What is recomputed does not count. It is more than what must be computed (needed_flops), and the measure of load and of other systems.
double training_flops(const ModelConfig& config, const TokenWork& work);

/// What a training step must compute of that: an embedding is read, the head has the `wanted` tokens alone, and so has the last layer
/// behind its attention.
double needed_flops(const ModelConfig& config, const TokenWork& work, double wanted);

}  // namespace tandem::model
