// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>

namespace tandem {

/// True once the user asked to stop (SIGINT, SIGTERM). May be empty.
using StopRequested = std::function<bool()>;

}  // namespace tandem
