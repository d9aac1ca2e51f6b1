// SPDX-License-Identifier: Apache-2.0
#pragma once
// How weights lie on the ranks before and after: the question to which a plan is the answer.

#include <cstdint>
#include <vector>

#include "tandem/base/box.h"

namespace tandem::reshard {

/// A rank and a box of a tensor that it holds or wants.
struct Piece {
  int rank;
  Box box;
};
/// Who holds what of a tensor, by rank. Boxes of one rank do not overlap.
using Holding = std::vector<Piece>;

/// The tensors of a model, in the order in which all ranks number them. Tensors that lie alike before and after are of one kind, so
/// that a model of many thousand experts is a table of few entries.
struct Table {
  struct Kind {
    int32_t source, target;  ///< into `holdings`
  };
  int num_ranks = 0;
  std::vector<Holding> holdings;
  std::vector<Kind> kinds;
  std::vector<int32_t> kind_of;  ///< by tensor
};

/// A part of a wanted box that each rank holds whole or not at all. Ranks ascend.
struct Fragment {
  Box box;
  std::vector<int> holders;
  std::vector<int> receivers;  ///< want it and do not hold it
  std::vector<int> keepers;    ///< want it and hold it
};

/// Every wanted element once for each rank that wants it.
/// Errors: InternalError if nobody holds a part.
std::vector<Fragment> fragments_of(const Holding& source, const Holding& target);

}  // namespace tandem::reshard
