// SPDX-License-Identifier: Apache-2.0
#pragma once
// The arithmetic of reductions, shared by the backends so that all give the same bits.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "tandem/comm/group.h"

namespace tandem::comm {

/// The part [begin, end) of `count` elements that one of `size` ranks reduces.
struct Slice {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};
Slice slice_of(int64_t count, int rank, int size);

/// outs[*][i] = sources[0][i] + sources[1][i] + ... (or their maximum) for i < count, added in the order given. An out
/// may be one of the sources. bfloat16 is summed in float32 and rounded once.
/// Errors: InternalError for a dtype other than float32, float64, bfloat16, int64.
void reduce_ordered(std::span<const void* const> sources, std::span<void* const> outs, int64_t count, at::ScalarType dtype, ReduceOp op);

/// Errors: InternalError naming `op` unless the tensor is contiguous and on the device.
void check_movable(const at::Tensor& tensor, at::Device device, const char* op);

}  // namespace tandem::comm
