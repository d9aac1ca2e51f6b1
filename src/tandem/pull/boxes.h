// SPDX-License-Identifier: Apache-2.0
#pragma once
// Boxes of held weights, as both sides of a request see them.

#include <cstdint>
#include <span>
#include <vector>

#include "tandem/base/file/checksum.h"
#include "tandem/reshard/execute.h"
#include "tandem/pull/weights_message.h"

namespace tandem::pull {

/// In front of the weights in shared memory, so that they are aligned.
constexpr int64_t kSecretBytes = 64;
constexpr int64_t kMostBytesAtOnce = 8 << 20;  ///< a line of 140 kB/s gets them before it counts as dead (comm/endpoint.h)

/// The box of what is held, as a view. Errors: PeerError if it is not there as a whole.
at::Tensor view_of(std::span<const reshard::Held> held, const NumberedBox& wanted);
/// Values of boxes, as they go by sockets: each in `dtype`, one after the other. Errors: as view_of.
std::vector<std::byte> values_of(std::span<const reshard::Held> held, std::span<const NumberedBox> boxes, at::ScalarType dtype);
/// What tells them from others, if nobody forges them.
inline uint64_t digest_of(std::span<const std::byte> values) { return checksum_of(values); }
/// What of `wanted` `held` has: both in the order of the numbers, as are the boxes.
std::vector<NumberedBox> common_boxes(std::span<const reshard::Held> wanted, std::span<const reshard::Held> held);
/// The boxes in parts of at most kMostBytesAtOnce, a box row by row; a row is never cut.
std::vector<std::vector<NumberedBox>> parts_of(std::span<const NumberedBox> boxes, at::ScalarType dtype);

}  // namespace tandem::pull
