// SPDX-License-Identifier: Apache-2.0
#pragma once
// A file compiled into the program by cmake/embed.cmake.

#include <string_view>

namespace tandem {

struct Asset {
  std::string_view name;   ///< "index.html"
  std::string_view bytes;
};

}  // namespace tandem
