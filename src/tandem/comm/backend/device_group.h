// SPDX-License-Identifier: Apache-2.0
#pragma once
// What stands behind launch.h:with_device_groups, for devices whose memory the host does not see.

#include <functional>

#include "tandem/comm/group.h"

namespace tandem::comm {

/// Tensors go by the library that the build has; by way of the CPU where it has none.
void with_device_library(Group& world, at::Device device, double deadline_s, const std::function<void()>& body);

}  // namespace tandem::comm
