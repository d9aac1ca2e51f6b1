// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/surrogate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "tandem/base/check.h"

namespace tandem::algo {
namespace {

constexpr double kMaxLogRatio = 20;          // keeps exp() finite
constexpr double kMaxSequenceLogRatio = 10;  // as in GSPO's reference
constexpr double kMeanEps = 1e-8;            // GMPO's, in the count of a sequence's tokens
constexpr double kWeightEps = 1e-10;         // GMPO's, below the logarithm of a weight

at::Tensor none_of(const at::Tensor& like_T) { return at::zeros_like(like_T, like_T.options().dtype(at::kBool).requires_grad(false)); }

at::Tensor bounded(const at::Tensor& log_ratio_T) { return log_ratio_T.clamp(-kMaxLogRatio, kMaxLogRatio); }

// max(-A r, -A clip(r)), and which tokens the second bounds.
TokenLoss clipped_loss(const at::Tensor& log_ratio_T, const at::Tensor& advantages_T, const ClipRange& clip) {
  const at::Tensor ratio_T = log_ratio_T.exp();
  const at::Tensor free_T = -advantages_T * ratio_T;
  const at::Tensor bounded_T = -advantages_T * ratio_T.clamp(1 - clip.low, 1 + clip.high);
  return {at::maximum(free_T, bounded_T), bounded_T.gt(free_T), none_of(ratio_T), ratio_T.detach(), log_ratio_T.detach()};
}

// Proximal policy optimisation (Schulman et al. 2017) with separate bounds (Yu et al. 2025) and dual clip (Ye et al. 2020).
TokenLoss clip(const SurrogateInput& in, const Algorithm& algorithm) {
  TokenLoss out = clipped_loss(bounded(in.log_ratio_T), in.advantages_T, algorithm.clip);
  if (algorithm.clip.dual > 0) {
    const at::Tensor negative_T = in.advantages_T.lt(0);
    const at::Tensor most_T = -in.advantages_T * algorithm.clip.dual;
    out.clipped_dual_T = negative_T.logical_and(out.loss_T.gt(most_T));
    out.loss_T = at::where(negative_T, at::minimum(most_T, out.loss_T), out.loss_T);
  }
  return out;
}

// Group sequence policy optimisation (Zheng et al. 2025): the ratio is the geometric mean over the sequence, its gradient each token's.
TokenLoss gspo(const SurrogateInput& in, const Algorithm& algorithm) {
  const at::Tensor mean_T = in.sequences.to_tokens(in.sequences.mean(in.log_ratio_T.detach()));
  const at::Tensor log_ratio_T = (in.logprobs_T - in.logprobs_T.detach() + mean_T).clamp_max(kMaxSequenceLogRatio);
  TokenLoss out = clipped_loss(log_ratio_T, in.advantages_T, algorithm.clip);
  out.log_ratio_T = in.log_ratio_T.detach();
  return out;
}

// -stopgrad(clip(r)) A logprob: every token keeps a gradient. MiniMax-M1, 2025.
TokenLoss cispo(const SurrogateInput& in, const Algorithm& algorithm) {
  const at::Tensor log_ratio_T = bounded(in.log_ratio_T.detach()), ratio_T = log_ratio_T.exp();
  const at::Tensor weight_T = ratio_T.clamp(1 - algorithm.clip.low, 1 + algorithm.clip.high);
  return {-weight_T * in.advantages_T * in.logprobs_T, weight_T.ne(ratio_T), none_of(ratio_T), ratio_T, log_ratio_T};
}

// -A sigmoid(tau (r - 1)) 4 / tau: a soft gate for the clip. Soft adaptive policy optimisation (Gao et al. 2025).
TokenLoss sapo(const SurrogateInput& in, const Algorithm& algorithm) {
  const at::Tensor log_ratio_T = bounded(in.log_ratio_T), ratio_T = log_ratio_T.exp();
  const at::Tensor positive_T = at::full_like(in.advantages_T, algorithm.sapo.positive);
  const at::Tensor tau_T = at::where(in.advantages_T.gt(0), positive_T, at::full_like(positive_T, algorithm.sapo.negative));
  const at::Tensor gate_T = (tau_T * (ratio_T - 1)).sigmoid() * (4 / tau_T);
  return {-gate_T * in.advantages_T, none_of(ratio_T), none_of(ratio_T), ratio_T.detach(), log_ratio_T.detach()};
}

}  // namespace

TokenLoss token_loss(const SurrogateInput& in, const Algorithm& algorithm) {
  switch (algorithm.surrogate) {
    case Surrogate::kClip: return clip(in, algorithm);
    case Surrogate::kGspo: return gspo(in, algorithm);
    case Surrogate::kCispo: return cispo(in, algorithm);
    case Surrogate::kSapo: return sapo(in, algorithm);
    case Surrogate::kGmpo: break;
  }
  TANDEM_CHECK(false, "no loss of a token");
}

TokenLoss geometric_mean_loss(const SurrogateInput& in, const at::Tensor& correction_T, const Algorithm& algorithm) {
  const at::Tensor sign_T = in.advantages_T.sign();
  const at::Tensor bounded_T = in.log_ratio_T.clamp(-algorithm.clip.low, algorithm.clip.high);
  const at::Tensor kept_T = sign_T * at::minimum(sign_T * in.log_ratio_T, sign_T * bounded_T);
  const at::Tensor ratio_S = in.sequences.mean(kept_T, kMeanEps).exp();
  const at::Tensor advantage_S = in.sequences.mean(in.advantages_T, kMeanEps);
  const at::Tensor weight_S = in.sequences.mean((correction_T + kWeightEps).log(), kMeanEps).exp();
  const at::Tensor loss_S = -advantage_S * ratio_S * weight_S / in.sequences.num_tokens(ratio_S.scalar_type()).clamp_min(1);
  const at::Tensor clipped_T = kept_T.detach().ne(in.log_ratio_T.detach());
  return {in.sequences.to_tokens(loss_S), clipped_T.logical_and(in.advantages_T.gt(0)), clipped_T.logical_and(in.advantages_T.lt(0)),
          in.sequences.to_tokens(ratio_S.detach()), in.log_ratio_T.detach()};
}

}  // namespace tandem::algo
