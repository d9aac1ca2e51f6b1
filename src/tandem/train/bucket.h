// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which gradients are summed together, and which part of each sum a rank owns. Pure.

#include <cstdint>
#include <span>
#include <vector>

#include "tandem/model/parameters.h"

namespace tandem::train {

/// Layers of the flat buffers, side by side.
struct Bucket {
  int64_t first_layer, last_layer;  ///< both -1: the embedding
  int64_t num_layers;               ///< that the rank holds
  model::FlatRange dense, experts;
};

/// Whole layers up to `most_elements`, or one that is larger. The highest layers come first, as a backward pass is done with them first;
/// the embedding comes last and alone. `elements` are the sizes of table.layers; ranks that hold different experts must pass the same.
std::vector<Bucket> buckets_of(const model::ParameterTable& table, std::span<const int64_t> elements, int64_t most_elements);

/// What a rank owns of one range of a bucket.
struct Slice {
  int64_t bucket;
  bool experts;
  int64_t begin, size;  ///< in the flat buffers
  int64_t at;           ///< in the optimizer's state
};

/// One of the ranks that hold the same of something.
struct Share {
  int index = 0, ranks = 1;
  model::FlatRange of(model::FlatRange range) const {
    const int64_t size = range.size() / ranks;
    return {range.begin + index * size, range.begin + (index + 1) * size};
  }
};

/// In the order of the flat buffers; ranges that are empty are left out.
std::vector<Slice> slices_of(std::span<const Bucket> buckets, Share dense, Share experts);

}  // namespace tandem::train
