// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random layouts for tests: each tensor is cut into a grid whose cells are dealt to ranks, some to several.

#include <algorithm>
#include <set>

#include "tandem/base/rng.h"
#include "tandem/reshard/plan.h"

namespace tandem::reshard {

struct Shapes {
  std::vector<std::vector<int64_t>> of;
};

inline Shapes random_shapes(RandomStream& random) {
  Shapes shapes;
  for (int64_t n = 1 + random.below(4); n > 0; --n) {
    std::vector<int64_t> shape;
    for (int64_t d = random.below(4); d > 0; --d) shape.push_back(1 + random.below(9));
    shapes.of.push_back(shape);
  }
  return shapes;
}

/// Every element is held by at least one rank; a rank's boxes of one tensor do not overlap. By tensor.
inline std::vector<Holding> random_layout(const Shapes& shapes, int ranks, RandomStream& random) {
  std::vector<Holding> layout;
  for (const std::vector<int64_t>& shape : shapes.of) {
    std::vector<Box> cells = {Box::whole(shape)};
    for (size_t d = 0; d < shape.size(); ++d) {
      const int64_t at = random.below(shape[d] + 1);  // 0 and the end mean: not cut
      std::vector<Box> next;
      for (const Box& cell : cells) {
        Box low = cell, high = cell;
        low.end[d] = high.begin[d] = at;
        if (low.extent(d) > 0) next.push_back(low);
        if (high.extent(d) > 0) next.push_back(high);
      }
      cells = next;
    }
    Holding& holding = layout.emplace_back();
    for (const Box& cell : cells) {
      std::set<int> holders = {static_cast<int>(random.below(ranks))};
      while (random.uniform() < 0.4) holders.insert(static_cast<int>(random.below(ranks)));
      for (int r : holders) holding.push_back({r, cell});
    }
    std::ranges::stable_sort(holding, {}, &Piece::rank);
  }
  return layout;
}

/// Each tensor a kind of its own.
inline Table table_of(int num_ranks, const std::vector<Holding>& source, const std::vector<Holding>& target) {
  Table table{.num_ranks = num_ranks};
  for (size_t t = 0; t < source.size(); ++t) {
    const auto first = static_cast<int32_t>(table.holdings.size());
    table.holdings.insert(table.holdings.end(), {source[t], target[t]});
    table.kinds.push_back({first, first + 1});
    table.kind_of.push_back(static_cast<int32_t>(t));
  }
  return table;
}

}  // namespace tandem::reshard
