// SPDX-License-Identifier: Apache-2.0
#pragma once
// The files of the page, compiled in by cmake/embed.cmake from board/static and third_party/dygraphs.

#include <span>

#include "tandem/base/asset.h"

namespace tandem::board {

std::span<const Asset> assets();

}  // namespace tandem::board
