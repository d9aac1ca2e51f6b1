// SPDX-License-Identifier: Apache-2.0
#pragma once
// LogitKernels over the row kernels of this processor.

#include <span>

#include "tandem/model/kernel/cpu/rows.h"
#include "tandem/model/kernel/logit.h"

namespace tandem::model::kernel::cpu {

extern const LogitKernels kLogitKernels;

/// From the statistics of the vocabulary's shards, in shard order.
LogSoftmax combine(std::span<const LogitStats> shards, float inv_temperature);

}  // namespace tandem::model::kernel::cpu
