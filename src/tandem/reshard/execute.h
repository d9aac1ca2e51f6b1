// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs a plan: bucket by bucket, copies what a rank holds itself and moves the rest by one all_to_all_v.

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>

#include "tandem/comm/group.h"
#include "tandem/device/arena.h"
#include "tandem/reshard/plan.h"

namespace tandem::reshard {

/// A box of the plan's tensor of that number, and its values in the shape of the box. It may be a view.
struct Held {
  int32_t number;
  Box box;
  at::Tensor tensor;
};

struct ExecuteOptions {
  /// Of elements on the way, as wide as the plan counts them: the narrower of the source's and the target's. The sender rounds to it, the
  /// receiver widens from it. A rank converts what it takes from itself in the same way.
  at::ScalarType dtype;
  /// execute calls both for each bucket in turn, on its caller's thread. Before: no target of the bucket is written yet. After: nothing
  /// of the bucket will be read or written again. An exception from either ends the switch. policy/actor.cpp:send_weights gives memory
  /// to the target in the one, and takes it from the source in the other; they send nothing.
  std::function<void(size_t bucket)> before_bucket = {}, after_bucket = {};
  device::Arena* arena = nullptr;  ///< counts the staging; may be null
};

struct Moved {
  int64_t sent_bytes = 0;          ///< without checksums
  int64_t staging_peak_bytes = 0;  ///< all staging that lived at one time
};

/// Fills `target` from the `source` of all ranks; both in the order of the numbers. An empty plan moves nothing.
///
/// Ownership  tensors stay the caller's; staging lives only during the call, as does a thread for the group's calls.
/// Blocking   collective over `group`.
/// Errors     InternalError if tensors do not fit the plan. PeerError from the group, or for a wrong checksum: it names sender,
///            receiver, bucket and tensors. The first error ends packing, transfer and group. The target then holds an unusable
///            mixture; nobody ever writes the source.
Moved execute(const RankPlan& plan, comm::Group& group, std::span<const Held> source, std::span<const Held> target,
              const ExecuteOptions& options);

}  // namespace tandem::reshard
