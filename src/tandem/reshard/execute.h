// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs a plan: copies what a rank holds itself, then moves the buckets, one all_to_all_v each.

#include <ATen/core/Tensor.h>

#include <span>

#include "tandem/comm/group.h"
#include "tandem/reshard/plan.h"

namespace tandem::reshard {

/// A box of the plan's tensor of that number, and its values in the shape of the box. It may be a view.
struct Held {
  int32_t number;
  Box box;
  at::Tensor tensor;
};

struct Moved {
  int64_t sent_bytes = 0, received_bytes = 0, copied_bytes = 0;
  int64_t staging_peak_bytes = 0;  ///< both staging buffers at their largest
};

/// Fills `target` from the `source` of all ranks; both in the order of the numbers. An empty plan moves nothing.
///
/// Ownership  tensors stay the caller's; staging of one bucket lives only during the call.
/// Blocking   collective over `group`.
/// Errors     InternalError if tensors do not fit the plan; PeerError from the group. After an error the target holds an
///            unusable mixture; the source is never written.
Moved execute(const RankPlan& plan, comm::Group& group, std::span<const Held> source, std::span<const Held> target);

}  // namespace tandem::reshard
