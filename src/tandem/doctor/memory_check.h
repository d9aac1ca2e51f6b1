// SPDX-License-Identifier: Apache-2.0
#pragma once
// The device's memory as the arena takes it: addresses that get memory, lose it, and get it back with what was in it.

#include <c10/core/Device.h>

#include "tandem/doctor/check.h"

namespace tandem::doctor {

void check_memory(at::Device device, const Told& told);

}  // namespace tandem::doctor
