// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/backend/scripts.h"

#include <filesystem>

#include "tandem/base/check.h"

namespace tandem::reward {

std::string_view script(std::string_view name) {
  for (const Asset& asset : assets())
    if (asset.name == name) return asset.bytes;
  TANDEM_CHECK(false, "no script ", name);
}

std::string_view build_python() {
  return wheel_python().empty() ? std::string_view(TANDEM_BUILD_PYTHON) : wheel_python();
}

std::string package_python(const std::string& asked) {
  std::error_code failed;
  return !asked.empty() ? asked : std::filesystem::exists(build_python(), failed) ? std::string(build_python()) : "python3";
}

std::string python_for(const std::string& asked) {
  return !asked.empty() ? asked : wheel_python().empty() ? "python3" : wheel_python();
}

std::string& wheel_python() {
  static std::string python;
  return python;
}

}  // namespace tandem::reward
