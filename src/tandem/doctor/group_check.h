// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether ranks on devices of one kind understand each other.

#include <c10/core/Device.h>

#include <vector>

#include "tandem/doctor/check.h"

namespace tandem::doctor {

/// Ranks as threads with a device each, four at most, exchange tensors there, and what comes is held against what it must be. On the
/// processor there are two. With one device nobody can talk: no check then.
std::vector<Check> check_groups(at::Device device);

}  // namespace tandem::doctor
