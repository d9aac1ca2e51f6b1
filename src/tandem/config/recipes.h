// SPDX-License-Identifier: Apache-2.0
#pragma once
// The recipes of configs/, compiled in by cmake/embed.cmake: a program from a wheel has no such folder.

#include <span>

#include "tandem/base/asset.h"

namespace tandem::config {

std::span<const Asset> assets();

}  // namespace tandem::config
