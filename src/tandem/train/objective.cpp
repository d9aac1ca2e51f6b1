// SPDX-License-Identifier: Apache-2.0
// T = R response tokens of a micro-batch, S its sequences
#include "tandem/train/objective.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>

#include "tandem/algo/policy_loss.h"
#include "tandem/comm/scalar.h"

namespace tandem::train {
namespace {

// One value per response token, from rows.
template <class Fill>
at::Tensor per_token(const MicroBatch& batch, std::span<const Row> rows, const Fill& fill) {
  at::Tensor out = at::empty({batch.response_offsets.back()}, at::kFloat);
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    const int64_t at = batch.response_offsets[i];
    fill(rows[batch.rows[i]], at, out.data_ptr<float>() + at);
  }
  return out;
}

// `now`: the current log-probabilities, which stand in for those of a row that brings no old ones.
algo::PolicyLossInput policy_input(const MicroBatch& batch, std::span<const Row> rows, const float* now, const StepCounts& counts) {
  const int64_t R = batch.response_offsets.back();
  algo::PolicyLossInput in;
  in.old_T = per_token(batch, rows, [&](const Row& row, int64_t at, float* out) {
    const float* from = row.old.empty() ? now + at : row.old.data();
    std::copy(from, from + row.response.size(), out);
  });
  in.behavior_T = per_token(batch, rows, [](const Row& row, int64_t, float* out) {
    std::copy(row.behavior.begin(), row.behavior.end(), out);
  });
  in.correction_T = at::ones({R}, at::kFloat);
  in.advantages_T = per_token(batch, rows, [](const Row& row, int64_t, float* out) {
    std::fill(out, out + row.response.size(), static_cast<float>(row.advantage));
  });
  in.trainable_T = at::ones({R}, at::kBool);
  in.offsets_S = at::empty({static_cast<int64_t>(batch.rows.size())}, at::kLong);
  std::copy(batch.response_offsets.begin(), batch.response_offsets.end() - 1, in.offsets_S.data_ptr<int64_t>());
  in.global_tokens = counts.tokens;
  in.global_sequences = counts.sequences;
  return in;
}

// Both sides of a fresh row are the same quantity and must agree.
void count_fresh(const MicroBatch& batch, std::span<const Row> rows, const float* now, StepSums& sums) {
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    const Row& row = rows[batch.rows[i]];
    if (!row.fresh) continue;
    sums.fresh_tokens += static_cast<double>(row.response.size());
    for (size_t t = 0; t < row.response.size(); ++t) {
      const double d = static_cast<double>(row.behavior[t]) - now[batch.response_offsets[i] + static_cast<int64_t>(t)];
      sums.kl_rollout_train += std::expm1(-d) + d;
    }
  }
}

}  // namespace

Objective policy_objective(std::span<const Row> rows, const algo::Algorithm& algorithm) {
  return [rows, &algorithm](const MicroBatch& batch, const at::Tensor& logprobs_R, StepTotals& totals) {
    const at::Tensor current = logprobs_R.detach();
    const float* now = current.data_ptr<float>();
    algo::PolicyLossInput in = policy_input(batch, rows, now, totals.counts);
    in.logprobs_T = logprobs_R;
    const algo::PolicyLoss policy = algo::policy_loss(in, algorithm);
    totals.sums.clipped += policy.sums.clipped;
    totals.ratio_max = std::max(totals.ratio_max, policy.sums.ratio_max);
    count_fresh(batch, rows, now, totals.sums);
    if (!algorithm.needs_reference()) return policy.loss;
    const at::Tensor reference = per_token(batch, rows, [](const Row& row, int64_t, float* out) {
      std::copy(row.reference.begin(), row.reference.end(), out);
    });
    const algo::KlPenalty kl =
        algo::kl_penalty(logprobs_R, reference, {in.trainable_T, in.offsets_S, in.global_tokens, in.global_sequences}, algorithm);
    totals.sums.kl_ref += kl.sum;
    return policy.loss + kl.loss;
  };
}

Objective supervised_objective() {
  return [](const MicroBatch&, const at::Tensor& logprobs_R, StepTotals& totals) { return -logprobs_R.sum() / totals.counts.tokens; };
}

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
