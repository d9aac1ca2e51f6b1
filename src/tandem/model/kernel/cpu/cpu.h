// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tables of this folder: every function by kernels for this processor.

#include <span>

#include "tandem/model/kernel/backend.h"
#include "tandem/model/kernel/cpu/rows.h"

namespace tandem::model::kernel::cpu {

extern const RowKernels kRowKernels;
/// A cache's keys lie [block][kv_head][block_tokens/16][D][16], its values [block][kv_head][block_tokens][D].
extern const AttentionKernels kAttentionKernels;
extern const LogitKernels kLogitKernels;
extern const ExpertKernels kExpertKernels;
extern const UpdateKernels kUpdateKernels;

/// From the statistics of the vocabulary's shards, in shard order.
LogSoftmax combine(std::span<const LogitStats> shards, float inv_temperature);

}  // namespace tandem::model::kernel::cpu
