// SPDX-License-Identifier: Apache-2.0
#pragma once
// The Python sources of this folder, compiled in by cmake/embed.cmake.

#include <span>
#include <string>
#include <string_view>

#include "tandem/base/asset.h"

namespace tandem::reward {

std::span<const Asset> assets();
/// One of them by file name. The name of a missing one is a bug.
std::string_view script(std::string_view name);
/// Path of the Python the build used; scripts/setup installs math-verify there. In a wheel, that of wheel_python.
std::string_view build_python();
/// Path of the Python that a wheel with this program is installed in; "" without a wheel. Set before anything runs.
std::string& wheel_python();
/// What runs a script that needs packages: `asked` unless it is empty; else the build's Python, for which scripts/setup installs them,
/// where that is still there.
std::string package_python(const std::string& asked);
/// What runs the Python of a user: `asked` unless it is empty.
std::string python_for(const std::string& asked);

}  // namespace tandem::reward
