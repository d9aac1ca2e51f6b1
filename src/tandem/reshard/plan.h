// SPDX-License-Identifier: Apache-2.0
#pragma once
// From one layout of weights to another: which rank sends which box to whom, in buckets of bounded size. A pure function of
// the boxes, so it can be printed, costed and tested without a device; all ranks compute the same plan.

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/base/box.h"

namespace tandem::reshard {

/// What each rank holds or wants: boxes of named tensors.
using RankBoxes = std::vector<std::vector<TensorSpec>>;

struct PlanOptions {
  int64_t element_bytes = 2;
  int64_t bucket_bytes = 64 << 20;  ///< most that one rank sends and receives in one call, taken together
};

/// A box that goes from an entry of the sender's list to an entry of the receiver's. from == to is a copy.
struct Transfer {
  int from, to;
  int64_t source_index, target_index;  ///< into the lists of `from` and `to`
  Box box;
  int64_t bucket;                      ///< 0 for copies
};

struct PlanStats {
  int64_t bytes_total = 0;        ///< sent over all ranks
  int64_t lower_bound_bytes = 0;  ///< what receivers lack, each element once
  int64_t bytes_copied = 0;       ///< moved inside a rank
  int64_t staging_peak_bytes = 0; ///< most of one rank in one bucket
  std::vector<int64_t> sent_bytes, received_bytes;  ///< by rank
};

struct Plan {
  bool alias = false;                ///< the layouts are equal: the target may be the source, nothing moves
  std::vector<Transfer> copies;      ///< inside ranks
  std::vector<Transfer> transfers;   ///< between ranks, by bucket
  int64_t num_buckets = 0;           ///< calls of all_to_all_v
  PlanOptions options;
  PlanStats stats;
};

/// Takes what a rank already holds; every other element comes once, from the holder that has sent least so far.
/// Errors: InternalError if nobody holds a wanted box, or shapes of one name differ.
Plan make_plan(const RankBoxes& source, const RankBoxes& target, const PlanOptions& options);

/// The parts of `box` outside `hole`, disjoint; at most two per dimension.
std::vector<Box> subtract(const Box& box, const Box& hole);

}  // namespace tandem::reshard
