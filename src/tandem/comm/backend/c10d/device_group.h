// SPDX-License-Identifier: Apache-2.0
#pragma once
// What stands behind launch.h:carry_devices, for devices whose memory the host does not see.

#include <functional>
#include <memory>

#include "tandem/comm/launch.h"

namespace tandem::comm {

/// By the library that the build has; null where it has none.
std::unique_ptr<DeviceGroups> carry_by_library(Group& world, at::Device device, double deadline_s);

/// launch.h:with_device_groups with these, which may be null.
void with_groups(std::unique_ptr<DeviceGroups> groups, Group& world, const std::function<void()>& body);

}  // namespace tandem::comm
