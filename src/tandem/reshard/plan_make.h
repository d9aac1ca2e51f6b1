// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes a plan: a pure function of a table, so all ranks compute the same.

#include "tandem/reshard/plan.h"

namespace tandem::reshard {

/// A rank takes what it holds from itself. Every other element comes to it once, from a holder of its node if there is one. Ranks that
/// hold the same share the sending. Errors: InternalError if nobody holds a wanted box.
Plan make_plan(const Table& table, const PlanOptions& options, Mode mode);
/// The mode whose busiest rank is done first, as modelled.
Plan make_plan(const Table& table, const PlanOptions& options);

/// The first half of planning (plan_deal.cpp): who sends what to whom. Fills in the mode and the transfers, without buckets, from the
/// fragments and the lower bound of the stats. docs/design/reshard.md has the rules.
void deal(Plan& plan, int num_ranks, Mode mode);

/// The second half: gives each transfer the first bucket in which both its ranks have room; one between nodes also needs their room for
/// such traffic. A transfer that passes on what another brings comes later: its bucket is packed after that of the other is unpacked. Then
/// sorts the transfers by bucket and tensor. Fills in the numbers of buckets and calls, the staging peak and the modelled time, in which a
/// bucket lasts as long as its busiest rank needs.
void fill_buckets(Plan& plan, int num_ranks);

/// Modelled time of the rank that has most to send or to get: a lower bound of the plan's, whatever its buckets.
double busiest_rank_s(const Plan& plan, int num_ranks);

}  // namespace tandem::reshard
