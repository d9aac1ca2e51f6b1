// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/backend/scripts.h"

#include <cstdlib>

#include "tandem/base/check.h"

namespace tandem::reward {

std::string_view script(std::string_view name) {
  for (const Asset& asset : assets())
    if (asset.name == name) return asset.bytes;
  TANDEM_CHECK(false, "no script ", name);
}

std::string_view build_python() {
  const std::string_view python = wheel_python();
  return python.empty() ? TANDEM_BUILD_PYTHON : python;
}

std::string_view wheel_python() {
  const char* const python = std::getenv("TANDEM_WHEEL_PYTHON");
  return python ? python : "";
}

}  // namespace tandem::reward
