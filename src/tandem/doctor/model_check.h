// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small model of each family on the device against the same one by our own kernels on the processor: scores, training, generation.

#include "tandem/doctor/check.h"
#include "tandem/model/kernel/backend.h"

namespace tandem::doctor {

/// Of each family in float32 and bfloat16: log-probabilities of packed rows, two training steps, a greedy answer, and that the same steps
/// give the same bits again. Where steps of decoding are captured as graphs, greedy answers of several prompts with and without them.
void check_models(const model::kernel::Backend& backend, at::Device device, const Told& told);

}  // namespace tandem::doctor
