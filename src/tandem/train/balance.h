// SPDX-License-Identifier: Apache-2.0
#pragma once
// Work dealt to data-parallel ranks such that none waits long for another. runtime/stage/stages.cpp:deal_rows asks, with whole groups or
// single samples as items; every rank computes the same.
//
// Karmarkar and Karp, "The differencing method of set partitioning" (1982), for any number of parts: the two partial solutions whose
// parts differ most are joined, largest part to smallest. Then the largest part gives up or swaps items while that lowers it.

#include <span>
#include <vector>

namespace tandem::train {

/// Which of `parts` each item goes to. Costs are not negative; the same for the same costs on every rank.
std::vector<int> balance(std::span<const double> costs, int parts);

}  // namespace tandem::train
