// SPDX-License-Identifier: Apache-2.0
#pragma once
// Boxes of held weights, as both sides of a request see them.

#include <cstdint>
#include <span>
#include <vector>

#include "tandem/reshard/execute.h"
#include "tandem/pull/weights_message.h"

namespace tandem::pull {

/// In front of the weights in shared memory, so that they are aligned.
constexpr int64_t kSecretBytes = 64;
constexpr int64_t kMostBytesAtOnce = 64 << 20;

/// The box of what is held, as a view. Errors: PeerError if it is not there as a whole.
at::Tensor view_of(std::span<const reshard::Held> held, const NumberedBox& wanted);
/// What of `wanted` `held` has: both in the order of the numbers, as are the boxes.
std::vector<NumberedBox> common_boxes(std::span<const reshard::Held> wanted, std::span<const reshard::Held> held);
/// The box in pieces of at most so many elements, row by row; a row is never cut.
std::vector<NumberedBox> pieces_of(const NumberedBox& box, int64_t most_elements);

}  // namespace tandem::pull
