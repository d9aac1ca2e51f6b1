// SPDX-License-Identifier: Apache-2.0
#pragma once
// The files of the page, compiled in by cmake/embed.cmake from board/static and third_party/dygraphs.

#include <span>
#include <string_view>

namespace tandem::board {

struct Asset {
  std::string_view name;   ///< "index.html"
  std::string_view bytes;
};

std::span<const Asset> assets();

}  // namespace tandem::board
