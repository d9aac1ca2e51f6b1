// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/correction.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "tandem/algo/sequences.h"
#include "tandem/base/check.h"

namespace tandem::algo {
namespace {

constexpr double kMaxLogWeight = 20;  // keeps exp() finite
constexpr double kCountEps = 1e-8;    // of the reference's masked mean

at::Tensor distance(const at::Tensor& l_T, Rejection::Distance distance) {
  switch (distance) {
    case Rejection::Distance::kK1: return -l_T;
    case Rejection::Distance::kK2: return 0.5 * l_T.square();
    case Rejection::Distance::kK3: return l_T.exp() - 1 - l_T;
  }
  TANDEM_CHECK(false, "no such distance");
}

// True where the rule keeps a token.
at::Tensor kept(const at::Tensor& l_T, const Sequences& sequences, const Rejection& rule) {
  at::Tensor d_T = distance(l_T, rule.distance);
  switch (rule.level) {
    case Rejection::Level::kToken: break;
    case Rejection::Level::kSequenceSum: d_T = sequences.to_tokens(sequences.sum(d_T)); break;
    case Rejection::Level::kSequenceMean: d_T = sequences.to_tokens(sequences.mean(d_T, kCountEps)); break;
    case Rejection::Level::kSequenceMax: d_T = sequences.to_tokens(sequences.max(d_T, -std::numeric_limits<double>::infinity())); break;
  }
  if (rule.distance != Rejection::Distance::kK1) return d_T.le(rule.upper);
  return d_T.ge(std::log(rule.lower)).logical_and(d_T.le(std::log(rule.upper)));
}

CorrectionSums sums_of(const Corrected& corrected, const at::Tensor& l_T, const at::Tensor& bounded_T, const at::Tensor& outside_T,
                       const at::Tensor& mask_T) {
  auto sum = [](const at::Tensor& t_T) { return t_T.sum(at::kDouble).item<double>(); };
  const at::Tensor rejected_T = mask_T.logical_and(corrected.trainable_T.logical_not());
  // Outside the mask l is 0, which adds nothing to either divergence.
  return {sum(corrected.weights_T), sum(outside_T), sum(rejected_T), -sum(l_T), sum((2 * bounded_T).expm1()),
          corrected.weights_T.max().item<double>()};
}

}  // namespace

Corrected correct(const at::Tensor& old_T, const at::Tensor& behavior_T, const at::Tensor& trainable_T, const at::Tensor& offsets_S,
                  const Correction& correction) {
  const at::Tensor mask_T = trainable_T.to(at::kBool), ignored_T = mask_T.logical_not();
  const at::Tensor l_T = (old_T - behavior_T).detach().masked_fill(ignored_T, 0);
  const at::Tensor bounded_T = l_T.clamp(-kMaxLogWeight, kMaxLogWeight);
  const Sequences sequences(mask_T, offsets_S);
  Corrected out = {at::ones_like(l_T), mask_T, {}, {}};
  switch (correction.level) {
    case WeightLevel::kNone: break;
    case WeightLevel::kToken: out.weights_T = bounded_T.exp(); break;
    case WeightLevel::kSequence:
      out.weights_T = sequences.to_tokens(sequences.sum(l_T).clamp(-kMaxLogWeight, kMaxLogWeight).exp());
      break;
    case WeightLevel::kSequenceMean: out.weights_T = sequences.to_tokens(sequences.mean(bounded_T).exp()); break;
  }
  const at::Tensor outside_T = out.weights_T.lt(correction.lower).logical_or(out.weights_T.gt(correction.upper)).logical_and(mask_T);
  if (correction.outside == Outside::kTruncate)
    out.weights_T.clamp_(correction.lower, correction.upper);
  else
    out.weights_T.masked_fill_(outside_T, 0);
  out.weights_T.masked_fill_(ignored_T, 0);
  for (const Rejection& rule : correction.rejections) out.trainable_T = out.trainable_T.logical_and(kept(bounded_T, sequences, rule));
  if (l_T.numel() > 0) out.sums = sums_of(out, l_T, bounded_T, outside_T, mask_T);
  if (correction.level == WeightLevel::kSequence || correction.level == WeightLevel::kSequenceMean) {
    const at::Tensor has_tokens_S = sequences.num_tokens(at::kDouble).gt(0);
    out.weights = {sequences.mean(out.weights_T).sum(at::kDouble).item<double>(), has_tokens_S.sum().item<double>()};
  } else {
    out.weights = {out.weights_T.sum(at::kDouble).item<double>(), mask_T.sum().item<double>()};
  }
  return out;
}

void normalize(Corrected& part, const WeightSum& batch) {
  if (batch.sum > 0) part.weights_T = part.weights_T / (batch.sum / batch.count);
}

at::Tensor loglinear_proximal(const at::Tensor& behavior_T, const at::Tensor& current_T, const at::Tensor& behind_T) {
  const at::Tensor share_T = ((behind_T - 1) / behind_T.clamp_min(1)).clamp_min(0);  // of the way to the current policy
  return behavior_T + share_T * (current_T - behavior_T);
}

at::Tensor on_policy_mask(const at::Tensor& current_T, const at::Tensor& old_T, const at::Tensor& advantages_T,
                          const Sequences& sequences, double delta) {
  const at::Tensor far_T = sequences.to_tokens(sequences.mean((old_T - current_T).detach()).gt(delta));
  return sequences.trainable_T().logical_and(far_T.logical_and(advantages_T.lt(0)).logical_not());
}

}  // namespace tandem::algo
