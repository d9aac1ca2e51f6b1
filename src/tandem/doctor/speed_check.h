// SPDX-License-Identifier: Apache-2.0
#pragma once
// How fast a device is, and what of that the passes of a model reach: a roofline.

#include "tandem/doctor/check.h"
#include "tandem/model/kernel/backend.h"

namespace tandem::doctor {

/// Measures a copy and a product there. Then a random dense model of 0.5 billion parameters decodes with 1 and with 64 sequences, as a
/// share of the copy's bytes a second, and trains, as a share of the product's operations a second. On the processor it is a hundredth
/// of the size. In bfloat16. Some seconds; nothing here passes or fails but by running.
void measure_speed(const model::kernel::Backend& backend, at::Device device, const Told& told);

}  // namespace tandem::doctor
