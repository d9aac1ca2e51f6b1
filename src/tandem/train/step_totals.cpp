// SPDX-License-Identifier: Apache-2.0
#include "tandem/train/step_totals.h"

#include "tandem/comm/scalar.h"

namespace tandem::train {

StepCounts counts_of_all(comm::Group& world, bool speaks, std::span<const Row> rows, std::span<const MicroBatch> batches) {
  StepCounts counts;
  if (speaks) {
    counts.sequences = static_cast<double>(rows.size());
    for (const Row& row : rows) {
      counts.tokens += static_cast<double>(row.response.size());
      counts.sequence_tokens += static_cast<double>(row.num_tokens());
      counts.replayed_rows += row.routes.empty() ? 0 : 1;
    }
    for (const MicroBatch& batch : batches) counts.computed_tokens += static_cast<double>(batch.tokens.ids_T.numel());
  }
  comm::sum_fields(world, counts);
  return counts;
}

void sum_up(comm::Group& world, bool speaks, StepTotals& totals) {
  if (!speaks) {
    StepSums routers;
    routers.router_z = totals.sums.router_z, routers.router_balance = totals.sums.router_balance;
    totals.sums = routers;
    totals.ratio_max = 0;
  }
  comm::sum_fields(world, totals.sums);
  totals.ratio_max = comm::max_over(world, totals.ratio_max);
}

}  // namespace tandem::train
