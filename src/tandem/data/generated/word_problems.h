// SPDX-License-Identifier: Apache-2.0
#pragma once
// Word problems of one step, which need no file: a sum, a difference or a product of two numbers, told in words.

#include <cstdint>
#include <string>

#include "tandem/data/source.h"

namespace tandem::data {

struct WordProblem {
  std::string question;  ///< "Mia has 14 shells and finds 17 more. How many shells does Mia have now?"
  int64_t answer;
};

/// A problem of the split by its row, a pure function of seed and row. Every third row is a sum, a difference, a product. The operation
/// with its two numbers belongs to training or to evaluation, the same for every seed, in whatever words and order: no run trains on a
/// held-out problem. One phrasing in seven of each operation is in evaluations alone.
WordProblem word_problem(const Options& options, Split split, int64_t row);

}  // namespace tandem::data
