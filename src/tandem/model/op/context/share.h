// SPDX-License-Identifier: Apache-2.0
#pragma once
// Context parallelism deals the tokens of one packed batch over ranks. Pure.

#include <cstdint>
#include <vector>

#include "tandem/model/kernel/attention.h"

namespace tandem::model::op {

using kernel::TokenRun, kernel::Trees;

/// Which tokens each rank has.
struct ContextShare {
  std::vector<std::vector<TokenRun>> runs;  ///< by rank; rising, none touches the next

  int64_t num_tokens(int rank) const;
  int64_t most_tokens() const;                  ///< of any rank
  std::vector<int64_t> tokens(int rank) const;  ///< rising indices into the packed tokens
};

/// Deals the tokens of `trees`, which lie end to end from 0. A stem or branch of at least 2 * ranks * n tokens, n the share_piece,
/// gives every rank two pieces, one from the front and one as far from the back, so that all see as many keys; a shorter one
/// is cut into pieces of at most 2n tokens, or left whole. Bounds, with K the longest stem and branch together:
///   tokens   two ranks differ by at most 2n + the number of long stems and branches
///   cells    (pairs of a query and a key it sees) they differ by at most 2nK
/// The same for the same trees. A rank may get nothing.
ContextShare context_share(const Trees& trees, int ranks);
/// About 1/64 of a rank's tokens, 16 at least, so that products stay products, and 128 at most.
int64_t share_piece(int64_t num_tokens, int ranks);

}  // namespace tandem::model::op
