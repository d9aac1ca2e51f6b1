// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory of the host.

#include "tandem/device/memory.h"

#include <memory>

namespace tandem::device {

/// Pages that nobody may touch until they are backed. Errors: PeerError, if there are no such addresses.
std::unique_ptr<Memory> pages(int64_t num_bytes);

}  // namespace tandem::device
