// SPDX-License-Identifier: Apache-2.0
#pragma once
// The Python sources of sink/backend, compiled in by cmake/embed.cmake.

#include <span>

#include "tandem/base/asset.h"

namespace tandem::sink {

std::span<const Asset> assets();

}  // namespace tandem::sink
