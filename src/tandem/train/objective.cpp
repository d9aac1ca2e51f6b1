// SPDX-License-Identifier: Apache-2.0
// T = R response tokens of a micro-batch, S its sequences
#include "tandem/train/objective.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tandem/algo/correction.h"
#include "tandem/algo/policy_loss.h"
#include "tandem/algo/sequences.h"
#include "tandem/algo/value_loss.h"
#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/scalar.h"

namespace tandem::train {
namespace {

// One value per response token: `values_of(row, at)` of each row, whose tokens begin at `at`.
template <class ValuesOf>
at::Tensor per_token(const MicroBatch& batch, std::span<const Row> rows, const ValuesOf& values_of) {
  at::Tensor out = at::empty({batch.response_offsets.back()}, at::kFloat);
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    const int64_t at = batch.response_offsets[i];
    std::ranges::copy(values_of(rows[batch.rows[i]], at), out.data_ptr<float>() + at);
  }
  return out;
}

// Such values of each row, as `what`.
at::Tensor column(const MicroBatch& batch, std::span<const Row> rows, std::vector<float> Row::*values, const char* what) {
  return per_token(batch, rows, [&](const Row& row, int64_t) -> const std::vector<float>& {
    TANDEM_CHECK((row.*values).size() == row.response.size(), (row.*values).size(), ' ', what, " for ", row.response.size(), " tokens");
    return row.*values;
  });
}

at::Tensor sequence_offsets(const MicroBatch& batch) {
  return at::tensor(at::IntArrayRef(batch.response_offsets).slice(0, batch.rows.size()));
}

// Of a row that says how far behind its tokens are. `now` as below.
at::Tensor proximal_of(const Row& row, const float* now) {
  const int64_t T = std::ssize(row.response);
  const auto tensor = [T](const float* values_T) { return at::from_blob(const_cast<float*>(values_T), {T}, at::kFloat); };
  return algo::loglinear_proximal(tensor(row.behavior.data()), tensor(now), tensor(row.behind.data()));
}

// `now`: the current log-probabilities, which stand in for those of a row that brings no old ones.
algo::PolicyLossInput policy_input(const MicroBatch& batch, std::span<const Row> rows, const float* now, const StepCounts& counts) {
  const int64_t R = batch.response_offsets.back();
  algo::PolicyLossInput in;
  at::Tensor proximal_T;  // of the row that is copied
  in.old_T = per_token(batch, rows, [&](const Row& row, int64_t at) -> std::span<const float> {
    if (row.behind.empty() && !row.old.empty()) return std::span(row.old).first(row.response.size());
    if (row.behind.empty()) return {now + at, row.response.size()};
    proximal_T = proximal_of(row, now + at);
    return {proximal_T.data_ptr<float>(), row.response.size()};
  });
  in.behavior_T = per_token(batch, rows, [](const Row& row, int64_t) { return row.behavior; });
  in.correction_T = at::ones({R}, at::kFloat);
  in.advantages_T = column(batch, rows, &Row::advantages, "advantages");
  in.trainable_T = batch.trainable_R;
  in.offsets_S = sequence_offsets(batch);
  in.global_tokens = std::max(counts.tokens, 1.0);  // without a trainable token the loss is 0
  in.global_sequences = std::max(counts.sequences, 1.0);
  return in;
}

// How far the policy is from old.
void count_moved(const algo::PolicyLossInput& in, const at::Tensor& current, StepSums& sums) {
  const at::Tensor moved_R = (current - in.old_T).masked_fill(in.trainable_T.logical_not(), 0).to(at::kDouble);
  sums.kl_old += (moved_R.expm1() - moved_R).sum().item<double>();
}

// Both sides of a fresh row are the same quantity and must agree.
void count_fresh(const MicroBatch& batch, std::span<const Row> rows, const float* now, StepSums& sums) {
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    const Row& row = rows[batch.rows[i]];
    if (!row.fresh) continue;
    for (size_t t = 0; t < row.response.size(); ++t) {
      if (!row.is_sampled(t)) continue;
      const double d = static_cast<double>(row.behavior[t]) - now[batch.response_offsets[i] + static_cast<int64_t>(t)];
      sums.kl_rollout_train += std::expm1(-d) + d;
      sums.gap.add(std::abs(d));
    }
  }
}

// How well the critic knew, over trainable tokens.
void count_values(const MicroBatch& batch, const at::Tensor& values_R, const at::Tensor& returns_R, StepSums& sums) {
  const bool* trainable = batch.trainable_R.data_ptr<bool>();
  const float *values = values_R.data_ptr<float>(), *returns = returns_R.data_ptr<float>();
  for (int64_t t = 0; t < values_R.numel(); ++t) {
    if (!trainable[t]) continue;
    const double value = values[t], wanted = returns[t], error = wanted - value;
    sums.values += value;
    sums.returns += wanted, sums.squared_returns += wanted * wanted;
    sums.errors += error, sums.squared_errors += error * error;
  }
}

// Weights for samples of another policy. What is left out has weight 0: no denominator and no other sum knows of it.
void correct(algo::PolicyLossInput& in, const algo::Algorithm& algorithm, const algo::WeightSum& weights, StepTotals& totals) {
  at::Tensor left_T = in.trainable_T;
  if (algorithm.correction.active()) {
    algo::Corrected corrected = algo::correct(in.old_T, in.behavior_T, in.trainable_T, in.offsets_S, algorithm.correction);
    if (algorithm.correction.normalize) algo::normalize(corrected, weights);
    in.correction_T = corrected.weights_T.masked_fill(corrected.trainable_T.logical_not(), 0);
    left_T = corrected.trainable_T;
    totals.sums.weight += corrected.sums.weight;
    totals.sums.outside += corrected.sums.outside;
    totals.sums.rejected += corrected.sums.rejected;
    totals.sums.behavior_kl += corrected.sums.kl;
    totals.sums.behavior_chi2 += corrected.sums.chi2;
    totals.weight_max = std::max(totals.weight_max, corrected.sums.weight_max);
  }
  if (algorithm.off_policy_delta > 0) {
    const at::Tensor kept_T = algo::on_policy_mask(in.logprobs_T.detach(), in.behavior_T, in.advantages_T, {in.trainable_T, in.offsets_S},
                                                   algorithm.off_policy_delta);
    totals.sums.rejected += left_T.logical_and(kept_T.logical_not()).sum().item<double>();
    in.correction_T = in.correction_T.masked_fill(kept_T.logical_not(), 0);
  }
}

}  // namespace

algo::WeightSum weights_of_all(comm::Group& world, bool speaks, std::span<const Row> rows, const algo::Correction& correction) {
  algo::WeightSum sum;
  const at::Tensor begin_S = at::zeros({1}, at::kLong);
  for (const Row& row : rows) {
    if (!speaks || row.response.empty()) continue;
    TANDEM_CHECK(row.old.size() == row.response.size(), row.old.size(), " old log-probabilities for ", row.response.size(), " tokens");
    const int64_t T = std::ssize(row.response);
    const auto tensor = [&](std::span<const float> v_T) { return at::from_blob(const_cast<float*>(v_T.data()), {T}, at::kFloat); };
    at::Tensor trainable_T = at::ones({T}, at::kBool);
    for (size_t t = 0; t < row.trainable.size(); ++t) trainable_T.data_ptr<bool>()[t] = row.trainable[t] != 0;
    const algo::WeightSum mine = algo::correct(tensor(row.old), tensor(row.behavior), trainable_T, begin_S, correction).weights;
    sum.sum += mine.sum, sum.count += mine.count;
  }
  comm::sum_fields(world, sum);
  return sum;
}

namespace {

// Of whole rows, end to end.
MicroBatch whole_of(std::span<const Row> rows) {
  MicroBatch batch;
  batch.response_offsets = {0};
  for (size_t i = 0; i < rows.size(); ++i) {
    batch.rows.push_back(i);
    batch.response_offsets.push_back(batch.response_offsets.back() + std::ssize(rows[i].response));
  }
  batch.trainable_R = at::ones({batch.response_offsets.back()}, at::kBool);
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t t = 0; t < rows[i].trainable.size(); ++t)
      batch.trainable_R.data_ptr<bool>()[batch.response_offsets[i] + static_cast<int64_t>(t)] = rows[i].trainable[t] != 0;
  return batch;
}

at::Tensor reference_column(const MicroBatch& batch, std::span<const Row> rows) {
  return column(batch, rows, &Row::reference, "reference values");
}

}  // namespace

LossColumns columns_of(std::span<const Row> rows, const Said& said, const algo::Algorithm& algorithm, const algo::WeightSum& weights,
                       const StepCounts& counts) {
  const MicroBatch whole = whole_of(rows);
  StepTotals unused;
  LossColumns columns{policy_input(whole, rows, said.of_tokens_R.data_ptr<float>(), counts), said.entropy_R, {}};
  columns.policy.logprobs_T = said.of_tokens_R;
  correct(columns.policy, algorithm, weights, unused);
  if (!rows.empty() && !rows.front().reference.empty()) columns.reference_R = reference_column(whole, rows);
  return columns;
}

Objective given_objective(std::span<const Row> rows, const algo::Algorithm& algorithm, const algo::WeightSum& weights, LossGradient given) {
  return [rows, &algorithm, weights, given = std::move(given), begins = whole_of(rows).response_offsets](
             const MicroBatch& batch, const Said& said, StepTotals& totals) {
    const at::Tensor &logprobs_R = said.of_tokens_R, current = logprobs_R.detach();
    if (batch.rows.empty()) return logprobs_R.sum();
    algo::PolicyLossInput in = policy_input(batch, rows, current.data_ptr<float>(), totals.counts);
    in.logprobs_T = current;
    correct(in, algorithm, weights, totals);
    count_moved(in, current, totals.sums);
    const at::Tensor moved_R = (current - in.old_T).masked_fill(in.trainable_T.logical_not(), 0);
    totals.ratio_max = std::max(totals.ratio_max, moved_R.exp().max().item<double>());
    count_fresh(batch, rows, current.data_ptr<float>(), totals.sums);
    const int64_t begin = begins[batch.rows.front()], R = batch.response_offsets.back();
    at::Tensor linear = (logprobs_R * given.logprobs_R.narrow(0, begin, R)).sum();
    if (given.entropy_R.defined()) linear = linear + (said.entropy_R * given.entropy_R.narrow(0, begin, R)).sum();
    return linear - linear.detach() + (begin == 0 ? given.loss : 0);  // its value counts once, its gradient everywhere
  };
}

Objective policy_objective(std::span<const Row> rows, const algo::Algorithm& algorithm, const algo::WeightSum& weights) {
  return [rows, &algorithm, weights](const MicroBatch& batch, const Said& said, StepTotals& totals) {
    const at::Tensor &logprobs_R = said.of_tokens_R, current = logprobs_R.detach();
    const float* now = current.data_ptr<float>();
    algo::PolicyLossInput in = policy_input(batch, rows, now, totals.counts);
    in.logprobs_T = logprobs_R;
    correct(in, algorithm, weights, totals);
    const algo::PolicyLoss policy = algo::policy_loss(in, algorithm);
    totals.sums.clipped += policy.sums.clipped;
    if (algorithm.surrogate == algo::Surrogate::kGmpo) totals.sums.clipped += policy.sums.clipped_dual;  // clips where A < 0
    count_moved(in, current, totals.sums);
    totals.ratio_max = std::max(totals.ratio_max, policy.sums.ratio_max);
    count_fresh(batch, rows, now, totals.sums);
    const algo::LossScope scope{in.trainable_T, in.offsets_S, in.global_tokens, in.global_sequences};
    at::Tensor loss = policy.loss;
    if (algorithm.entropy_coef != 0) loss = loss - algorithm.entropy_coef * algo::aggregate(said.entropy_R, scope, algorithm);
    if (!algorithm.has_kl_loss()) return loss;
    const at::Tensor reference = reference_column(batch, rows);
    const at::Tensor moved_R = (logprobs_R - in.behavior_T).masked_fill(in.trainable_T.logical_not(), 0);
    const algo::KlPenalty kl =
        algo::kl_penalty(logprobs_R, reference, scope, algorithm, algorithm.kl_weighted ? moved_R.exp() : at::Tensor());
    totals.sums.kl_ref += kl.sum;
    return loss + kl.loss;
  };
}

Objective value_objective(std::span<const Row> rows, const algo::Algorithm& algorithm, double value_clip) {
  return [rows, &algorithm, value_clip](const MicroBatch& batch, const Said& said, StepTotals& totals) {
    const at::Tensor old_R = column(batch, rows, &Row::values, "values"), returns_R = column(batch, rows, &Row::returns, "values");
    count_values(batch, old_R, returns_R, totals.sums);
    const algo::LossScope scope{batch.trainable_R, sequence_offsets(batch), std::max(totals.counts.tokens, 1.0),
                                std::max(totals.counts.sequences, 1.0)};
    const algo::ValueLoss loss = algo::value_loss({said.of_tokens_R, old_R, returns_R}, value_clip, scope, algorithm);
    totals.sums.clipped += loss.clipped;
    return loss.loss;
  };
}

Objective supervised_objective() {
  return [](const MicroBatch& batch, const Said& said, StepTotals& totals) {
    return -said.of_tokens_R.masked_fill(batch.trainable_R.logical_not(), 0).sum() / std::max(totals.counts.tokens, 1.0);
  };
}

bool has_signal(const Row& row) {
  for (size_t t = 0; t < row.advantages.size(); ++t)
    if (row.advantages[t] != 0 && (row.trainable.empty() || row.trainable[t])) return true;
  return false;
}

StepCounts counts_of_all(comm::Group& world, bool speaks, std::span<const Row> rows, int64_t computed_tokens) {
  StepCounts counts;
  if (speaks) {
    for (const Row& row : rows) {
      const int64_t trainable = row.num_trainable();
      counts.tokens += static_cast<double>(trainable);
      counts.sequences += trainable > 0 ? 1 : 0;
      counts.response_tokens += static_cast<double>(row.response.size());
      counts.sequence_tokens += static_cast<double>(row.num_tokens());
      counts.replayed_rows += row.routes.empty() ? 0 : 1;
      counts.signal_rows += has_signal(row) ? 1 : 0;
    }
    counts.computed_tokens = static_cast<double>(computed_tokens);
  }
  comm::sum_fields(world, counts);
  return counts;
}

UserLoss failing_alike(comm::Group& ranks, std::function<LossGradient(const LossColumns&)> function) {
  return [&ranks, function = std::move(function)](const LossColumns* columns) {
    LossGradient given;
    std::optional<comm::Fault> fault;
    try {
      if (columns) given = function(*columns);
    } catch (const std::exception& e) {
      if (ranks.size() == 1 && dynamic_cast<const UserError*>(&e)) throw;
      fault = comm::Fault{exit_code_of(e), e.what()};
    }
    if (const auto first = comm::first_fault(ranks, fault)) throw UserError(join_text("on rank ", first->rank), first->what, "");
    return given;
  };
}

void StepTotals::add(const StepTotals& other) {
  const auto add_fields = [](auto& mine, auto theirs) {
    std::vector<double> values;
    theirs.each([&](double value) { values.push_back(value); });
    mine.each([&, i = size_t{0}](double& field) mutable { field += values[i++]; });
  };
  add_fields(counts, other.counts);
  add_fields(sums, other.sums);
  sums.gap.max = std::max(sums.gap.max, other.sums.gap.max);
  ratio_max = std::max(ratio_max, other.ratio_max), weight_max = std::max(weight_max, other.weight_max);
}

void sum_up(comm::Group& world, bool speaks, StepTotals& totals) {
  if (!speaks) {
    StepSums routers;
    routers.router_z = totals.sums.router_z, routers.router_balance = totals.sums.router_balance;
    totals.sums = routers;
    totals.ratio_max = totals.weight_max = 0;
  }
  comm::sum_fields(world, totals.sums);
  std::array most = {totals.ratio_max, totals.weight_max, totals.sums.gap.max};
  comm::max_over(world, most);
  totals.ratio_max = most[0], totals.weight_max = most[1], totals.sums.gap.max = most[2];
}

}  // namespace tandem::train
