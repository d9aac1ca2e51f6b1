// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "tandem/base/check.h"
#include "tandem/model/kernel/aten/aten.h"

namespace tandem::model::kernel::aten {
namespace {

// Columns from best to worst; of equals the lower one is better.
at::Tensor ranked(const at::Tensor& values) {
  return std::get<1>(at::sort(values, /*stable=*/true, /*dim=*/1, /*descending=*/true));
}

// Takes every expert out of `choice` that is not in one of the best groups.
at::Tensor keep_groups(const at::Tensor& choice, const RouterShape& shape) {
  const int64_t T = choice.size(0), size = shape.num_experts / shape.num_groups;
  const at::Tensor grouped = choice.view({T, shape.num_groups, size});
  const at::Tensor worth = std::get<0>(at::sort(grouped, true, 2, true)).narrow(2, 0, 2).sum(2);
  const at::Tensor kept = at::zeros_like(worth, at::kBool).scatter_(1, ranked(worth).narrow(1, 0, shape.top_groups), true);
  return grouped.masked_fill(kept.logical_not().unsqueeze(2), -std::numeric_limits<float>::infinity()).view({T, shape.num_experts});
}

at::Tensor chosen_total(const at::Tensor& chosen_scores, const RouterShape& shape) {
  return shape.sigmoid ? chosen_scores.sum(1, /*keepdim=*/true) + 1e-20f : chosen_scores.sum(1, true);
}

Routed route(const at::Tensor& logits, const at::Tensor& bias, const RouterShape& shape, const at::Tensor& chosen) {
  const at::Tensor scores = shape.sigmoid ? logistic(logits) : at::softmax(logits, 1);
  at::Tensor experts = chosen;
  if (!chosen.defined()) {
    at::Tensor choice = bias.defined() ? scores + in_float(bias) : scores;
    if (shape.num_groups > 1) choice = keep_groups(choice, shape);
    experts = ranked(choice).narrow(1, 0, shape.experts_per_token).contiguous();
  } else if (chosen.numel() > 0) {
    TANDEM_CHECK(chosen.min().item<int64_t>() >= 0 && chosen.max().item<int64_t>() < shape.num_experts,
                 "a replayed token has an expert of ", shape.num_experts, " that there is not");
  }
  at::Tensor weights = scores.gather(1, experts);
  if (shape.normalize) weights = weights / chosen_total(weights, shape);
  return {scores, experts, weights * shape.scaling};
}

// d_logits from the gradients of the chosen weights.
at::Tensor score_backward(const RouterGrad& in, const RouterShape& shape) {
  const at::Tensor chosen = in.scores_TE.gather(1, in.experts_Tk);
  at::Tensor d = in.d_weights_Tk;  // of the scores
  if (shape.normalize) {
    const at::Tensor total = chosen_total(chosen, shape);
    d = (d - (d * chosen / total).sum(1, true)) / total;
  }
  d = d * shape.scaling;
  if (shape.sigmoid) return at::zeros_like(in.scores_TE).scatter_(1, in.experts_Tk, d * chosen * (1 - chosen));
  return in.scores_TE * (at::zeros_like(in.scores_TE).scatter_(1, in.experts_Tk, d) - (d * chosen).sum(1, true));
}

at::Tensor route_backward(const RouterGrad& in, const RouterShape& shape, const RouterLossTerms& loss, RouterLossSums& sums) {
  at::Tensor d_logits = score_backward(in, shape);
  if (!loss.any() || d_logits.numel() == 0) return d_logits;
  const at::Tensor counted = loss.counted_T.defined() ? in_float(loss.counted_T).unsqueeze(1) : at::Tensor();
  const auto count = [&](const at::Tensor& t) { return counted.defined() ? t * counted : t; };
  const at::Tensor log_sum = at::logsumexp(in.logits_TE, {1}, /*keepdim=*/true);
  sums.z += count(log_sum.square()).sum(at::kDouble).item<double>();
  d_logits.add_(count(2 * loss.z * log_sum * at::exp(in.logits_TE - log_sum)));
  if (loss.balance == 0) return d_logits;
  const at::Tensor &scores = in.scores_TE, total = shape.sigmoid ? scores.sum(1, true) + 1e-20f : at::Tensor();
  const at::Tensor shares = shape.sigmoid ? scores / total : scores;
  const at::Tensor mean = (shares * loss.load_E).sum(1, true);  // load of a token's experts, weighted by its shares
  sums.balance += count(mean).sum(at::kDouble).item<double>();
  const at::Tensor slope = shape.sigmoid ? scores * (1 - scores) / total : scores;
  return d_logits.add_(count(loss.balance * (loss.load_E - mean) * slope));
}

Sorted sort(const at::Tensor& experts, int64_t num_experts) {
  const at::Tensor flat = experts.reshape({-1}), choice = at::argsort(flat, /*stable=*/true, 0, false);
  const at::Tensor row = at::empty_like(choice).scatter_(0, choice, at::arange(choice.numel(), choice.options()));
  const at::Tensor counts = at::bincount(flat, {}, num_experts).to(at::kCPU).contiguous();
  Sorted out{{{0}}, choice, choice.div(experts.size(1), "floor"), row};
  for (int64_t e = 0; e < num_experts; ++e) out.rows.offsets.push_back(out.rows.offsets.back() + counts.data_ptr<int64_t>()[e]);
  return out;
}

at::Tensor combine(const at::Tensor& rows, const at::Tensor& row_of, int64_t k) {
  const at::Tensor parts = rows.index_select(0, row_of).view({-1, k, rows.size(1)});
  at::Tensor sum = in_float(parts.select(1, 0)).clone();
  for (int64_t i = 1; i < k; ++i) sum.add_(parts.select(1, i));
  return sum.to(rows.scalar_type());
}

}  // namespace

const ExpertKernels kExpertKernels = {route, route_backward, sort, combine};

}  // namespace tandem::model::kernel::aten
