// SPDX-License-Identifier: Apache-2.0
#pragma once
// The second half of planning: when each transfer goes.

#include "tandem/reshard/plan.h"

namespace tandem::reshard {

/// At the end of a message.
constexpr int64_t kChecksum_bytes = 8;

/// Gives each transfer the first bucket in which both its ranks have room; one between nodes also needs their room for such traffic. A
/// transfer that passes on what another brings comes later: its bucket is packed after that of the other is unpacked. Then sorts the
/// transfers by bucket and tensor. Fills in the numbers of buckets and calls, the staging peak and the modelled time, in which a bucket
/// lasts as long as its busiest rank needs.
void fill_buckets(Plan& plan, int num_ranks);

/// Modelled time of the rank that has most to send or to get: a lower bound of the plan's, whatever its buckets.
double busiest_rank_s(const Plan& plan, int num_ranks);

}  // namespace tandem::reshard
