// SPDX-License-Identifier: Apache-2.0
#pragma once
// SIGINT and SIGTERM as a flag that loops ask for.

#include <atomic>

namespace tandem::cli {

/// From now on the first of the two signals sets the flag it returns. A second SIGINT ends the process at once.
const std::atomic<bool>& stop_on_signals();

}  // namespace tandem::cli
