// SPDX-License-Identifier: Apache-2.0
#include "tandem/train/bucket.h"

#include <algorithm>

#include "tandem/base/check.h"

namespace tandem::train {

std::vector<Bucket> buckets_of(const model::ParameterTable& table, std::span<const int64_t> elements, int64_t most_elements) {
  TANDEM_CHECK(elements.size() == table.layers.size(), elements.size(), " sizes of ", table.layers.size(), " layers");
  std::vector<Bucket> buckets;
  int64_t filled = 0;
  for (size_t i = table.layers.size(); i-- > 0;) {
    const model::LayerRanges& l = table.layers[i];
    filled += elements[i];
    if (buckets.empty() || l.layer < 0 || filled > most_elements) {
      buckets.push_back({l.layer, l.layer, 1, l.dense, l.experts});
      filled = elements[i];
      continue;
    }
    Bucket& last = buckets.back();
    last.first_layer = l.layer;
    ++last.num_layers;
    last.dense.begin = l.dense.begin;
    last.experts.begin = l.experts.begin;
  }
  return buckets;
}

std::vector<Slice> slices_of(std::span<const Bucket> buckets, Share dense, Share experts) {
  std::vector<Slice> slices;
  int64_t at = 0;
  for (bool is_expert : {false, true})
    for (int64_t b = std::ssize(buckets) - 1; b >= 0; --b) {
      const Bucket& bucket = buckets[static_cast<size_t>(b)];
      const model::FlatRange mine = is_expert ? experts.of(bucket.experts) : dense.of(bucket.dense);
      if (mine.size() == 0) continue;
      slices.push_back({b, is_expert, mine.begin, mine.size(), at});
      at += mine.size();
    }
  return slices;
}

}  // namespace tandem::train
