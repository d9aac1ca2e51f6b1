// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/policy_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>

#include "tandem/algo/surrogate.h"
#include "tandem/base/check.h"

namespace tandem::algo {
namespace {

constexpr double kCutExponent = 20;  // verl's, where its estimate is cut
constexpr double kTangentFrom = 3;

// exp(-d) - 1 + d. Where the policy is below the reference by more than kTangentFrom it goes on along its tangent, so that one rare token
// does not outweigh a batch. Where it is above, the estimate grows as d does and needs no bound.
at::Tensor k3(const at::Tensor& minus_d_T) {
  const at::Tensor x_T = minus_d_T.clamp_max(kTangentFrom);
  return x_T.exp() - 1 - x_T + (minus_d_T - kTangentFrom).relu() * std::expm1(kTangentFrom);
}

// exp(-d) - 1 + d, at most `cut`, where it has no gradient.
at::Tensor k3_cut(const at::Tensor& minus_d_T, double cut) {
  const at::Tensor x_T = minus_d_T.clamp(-kCutExponent, kCutExponent);
  return (x_T.exp() - 1 - x_T).clamp_max(cut);
}

}  // namespace

void LossSums::add(const LossSums& other) {
  tokens += other.tokens;
  clipped += other.clipped;
  clipped_dual += other.clipped_dual;
  kl_old += other.kl_old;
  ratio_max = std::max(ratio_max, other.ratio_max);
}

PolicyLoss policy_loss(const PolicyLossInput& in, const Algorithm& algorithm) {
  const int64_t num_tokens = in.logprobs_T.numel();
  for (const at::Tensor* t : {&in.old_T, &in.behavior_T, &in.correction_T, &in.advantages_T, &in.trainable_T})
    TANDEM_CHECK(t->numel() == num_tokens, t->numel(), " entries beside ", num_tokens, " logprobs");
  const at::Tensor ignored_T = in.trainable_T.to(at::kBool).logical_not();

  // Masked before exp, so that garbage outside the mask cannot reach a gradient as 0 * inf.
  auto masked = [&](const at::Tensor& t_T) { return t_T.masked_fill(ignored_T, 0); };
  const at::Tensor log_ratio_T = masked(in.logprobs_T - in.old_T), correction_T = masked(in.correction_T);
  const Sequences sequences(in.trainable_T, in.offsets_S);
  const SurrogateInput surrogate = {masked(in.logprobs_T), log_ratio_T, masked(in.advantages_T), sequences};
  PolicyLoss result;
  TokenLoss tokens;
  if (algorithm.surrogate == Surrogate::kGmpo) {
    tokens = geometric_mean_loss(surrogate, correction_T, algorithm);
    result.loss = masked(tokens.loss_T).sum() / in.global_sequences;
  } else {
    tokens = token_loss(surrogate, algorithm);
    const LossScope scope = {in.trainable_T, in.offsets_S, in.global_tokens, in.global_sequences};
    result.loss = aggregate(tokens.loss_T * correction_T, scope, algorithm);
  }
  if (num_tokens == 0) return result;

  // One tensor, so that a device is waited for once.
  auto sum_of = [](const at::Tensor& t_T) { return t_T.detach().sum(at::kDouble); };
  const at::Tensor sums = at::stack({sum_of(ignored_T.logical_not()), sum_of(masked(tokens.clipped_T)),
                                     sum_of(masked(tokens.clipped_dual_T)), -sum_of(tokens.log_ratio_T),
                                     masked(tokens.ratio_T).max().to(at::kDouble)})
                              .cpu();
  const double* s = sums.const_data_ptr<double>();
  result.sums = {s[0], s[1], s[2], s[3], s[4]};
  return result;
}

at::Tensor kl_estimate(const at::Tensor& logprobs_T, const at::Tensor& reference_T, KlEstimator estimator, double cut) {
  const at::Tensor d_T = logprobs_T - reference_T;
  auto straight = [&](const at::Tensor& value_T) {
    const at::Tensor gradient_T = 0.5 * d_T.square();
    return value_T.detach() + (gradient_T - gradient_T.detach());  // the difference is exactly 0
  };
  const auto k3_T = [&] { return cut > 0 ? k3_cut(-d_T, cut) : k3(-d_T); };
  switch (estimator) {
    case KlEstimator::kK1: return d_T;
    case KlEstimator::kAbs: return d_T.abs();
    case KlEstimator::kK2: return 0.5 * d_T.square();
    case KlEstimator::kK3: return k3_T();
    case KlEstimator::kK1Straight: return straight(d_T);
    case KlEstimator::kK3Straight: return straight(k3_T());
  }
  TANDEM_CHECK(false, "no such KL estimator");
}

KlPenalty kl_penalty(const at::Tensor& logprobs_T, const at::Tensor& reference_T, const LossScope& scope, const Algorithm& algorithm,
                     const at::Tensor& ratio_T) {
  const at::Tensor ignored_T = scope.trainable_T.to(at::kBool).logical_not();
  const at::Tensor current_T = logprobs_T.masked_fill(ignored_T, 0), base_T = reference_T.masked_fill(ignored_T, 0);
  at::Tensor kl_T;
  if (!ratio_T.defined()) {
    kl_T = kl_estimate(current_T, base_T, algorithm.kl_estimator, algorithm.kl_cut);
  } else {  // bounds would bring the bias back that the ratio takes away
    const bool is_k3 = algorithm.kl_estimator == KlEstimator::kK3;
    const at::Tensor minus_d_T = base_T - current_T;
    const at::Tensor estimate_T = is_k3 ? minus_d_T.exp() - 1 - minus_d_T : kl_estimate(current_T, base_T, algorithm.kl_estimator, 0);
    kl_T = estimate_T * ratio_T.masked_fill(ignored_T, 0);
  }
  KlPenalty result;
  result.loss = algorithm.kl_coef * aggregate(kl_T, scope, algorithm);
  result.sum = kl_T.detach().sum(at::kDouble).item<double>();
  return result;
}

}  // namespace tandem::algo
