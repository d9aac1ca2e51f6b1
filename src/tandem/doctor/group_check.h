// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether ranks on devices of one kind understand each other.

#include <c10/core/Device.h>

#include "tandem/doctor/check.h"

namespace tandem::doctor {

constexpr double kGroupDeadline_s = 60;

/// Ranks as threads, one for each device of the kind, exchange tensors there, and what comes is held against what it must be. On the
/// processor there are two, of fake devices four at most. With one device nobody can talk: no check then.
void check_groups(at::Device device, const Told& told);

}  // namespace tandem::doctor
