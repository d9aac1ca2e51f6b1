// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one step leaves behind: its metrics and its samples.

#include "tandem/runtime/stage/stages.h"

namespace tandem::runtime {

/// Metrics of a step whose stages have ended, but for memory and start skew; its samples into the store. Collective.
void record_step(const StepData& step, const Roles& roles);

}  // namespace tandem::runtime
