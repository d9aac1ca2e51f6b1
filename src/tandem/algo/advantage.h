// SPDX-License-Identifier: Apache-2.0
#pragma once
// From scores to advantages: what a response is worth compared with the others of its prompt.

#include <cstdint>
#include <span>
#include <vector>

#include "tandem/algo/algorithm.h"

namespace tandem::algo {

/// One advantage per score; scores with the same entry of `groups` are compared with each other, in any order. Computed in
/// fp64. The deviation is the unbiased one; a group of one has mean 0 and deviation 1 (as verl's
/// compute_grpo_outcome_advantage).
std::vector<double> group_advantages(std::span<const double> scores, std::span<const int64_t> groups, const Algorithm& algorithm);

}  // namespace tandem::algo
