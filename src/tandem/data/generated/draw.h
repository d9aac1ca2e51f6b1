// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the generators share: a row's random stream, drawn from until a problem is on its side of the split.

#include "tandem/base/error.h"
#include "tandem/base/rng.h"
#include "tandem/data/source.h"

namespace tandem::data {

/// The first problem that draw(stream), an optional, gives: a pure function of seed, split and row. `advice` says what else to set where
/// one side of the split has no problems.
template <class Draw>
auto first_drawn(const Options& options, Split split, int64_t row, const char* advice, const Draw& draw) {
  constexpr int kMaxDraws = 100000;
  RandomStream stream(static_cast<uint64_t>(options.seed), static_cast<uint64_t>(row) * 2 + (split == Split::kTrain ? 0 : 1));
  for (int i = 0; i < kMaxDraws; ++i)
    if (auto problem = draw(stream)) return *std::move(problem);
  throw UserError("data.held_out_fraction", "leaves no problems on one side of the split", advice);
}

}  // namespace tandem::data
