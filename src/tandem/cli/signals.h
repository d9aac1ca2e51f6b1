// SPDX-License-Identifier: Apache-2.0
#pragma once
// SIGINT, SIGTERM and SIGHUP as a flag that loops ask for.

#include <atomic>

namespace tandem::cli {

/// Clears the flag that it returns; from now on the first of these signals sets it. SIGHUP does not where it is ignored, as under nohup.
/// A second SIGINT ends the process at once.
const std::atomic<bool>& stop_on_signals();

/// True once Ctrl-C came; whoever reads it clears it. A second Ctrl-C before that ends the process.
std::atomic<bool>& interrupts();

}  // namespace tandem::cli
