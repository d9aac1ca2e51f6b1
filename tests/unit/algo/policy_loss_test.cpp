// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/policy_loss.h"

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include <cmath>

#include "tandem/base/rng.h"

namespace tandem::algo {
namespace {

at::Tensor random_T(int64_t count, uint64_t stream, double scale = 1) {
  RandomStream random(5, stream);
  at::Tensor t = at::empty({count}, at::kDouble);
  for (int64_t i = 0; i < count; ++i) t.mutable_data_ptr<double>()[i] = scale * random.normal();
  return t;
}

/// Three sequences of 4, 1 and 5 tokens; the first token of each is a prompt token.
PolicyLossInput example() {
  PolicyLossInput in;
  in.old_T = random_T(10, 1) - 2;
  in.logprobs_T = (in.old_T + random_T(10, 2, 0.3)).requires_grad_();
  in.behavior_T = in.old_T + random_T(10, 3, 0.01);
  in.correction_T = at::ones({10}, at::kDouble);
  in.advantages_T = random_T(10, 4);
  in.trainable_T = at::tensor({0, 1, 1, 1, 0, 0, 1, 1, 1, 1}).to(at::kBool);
  in.offsets_S = at::tensor({int64_t{0}, int64_t{4}, int64_t{5}});
  in.global_tokens = 7;
  in.global_sequences = 2;
  return in;
}

PolicyLossInput part(const PolicyLossInput& in, int64_t first_sequence, int64_t last_sequence) {
  PolicyLossInput out = in;
  const int64_t* offsets = in.offsets_S.const_data_ptr<int64_t>();
  const int64_t begin = offsets[first_sequence], end = last_sequence < 3 ? offsets[last_sequence] : 10;
  for (auto member : {&PolicyLossInput::logprobs_T, &PolicyLossInput::old_T, &PolicyLossInput::behavior_T, &PolicyLossInput::correction_T,
                      &PolicyLossInput::advantages_T, &PolicyLossInput::trainable_T})
    out.*member = (in.*member).narrow(0, begin, end - begin);
  out.offsets_S = in.offsets_S.narrow(0, first_sequence, last_sequence - first_sequence) - begin;
  return out;
}

TEST(PolicyLoss, DoesNotDependOnTheSplitIntoMicroBatches) {
  for (const char* word : {"token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"}) {
    Algorithm algorithm;
    algorithm.aggregation = algorithm_of({.aggregation = word}).aggregation;
    algorithm.scale_tokens = 8;
    PolicyLossInput whole = example(), split = example();
    const PolicyLoss once = policy_loss(whole, algorithm);
    once.loss.backward();
    PolicyLoss a = policy_loss(part(split, 0, 1), algorithm), b = policy_loss(part(split, 1, 3), algorithm);
    (a.loss + b.loss).backward();
    EXPECT_TRUE(at::allclose(whole.logprobs_T.grad(), split.logprobs_T.grad(), 1e-12, 1e-14)) << word;
    a.sums.add(b.sums);
    EXPECT_EQ(a.sums.tokens, 7);
    EXPECT_EQ(a.sums.clipped, once.sums.clipped);
    EXPECT_EQ(a.sums.ratio_max, once.sums.ratio_max);
  }
}

TEST(PolicyLoss, IgnoresGarbageOutsideTheMask) {
  PolicyLossInput in = example(), bad = example();
  bad.old_T = bad.old_T.clone();
  bad.old_T[0] = -INFINITY;
  bad.behavior_T[4] = NAN;
  bad.advantages_T[5] = NAN;
  const PolicyLoss right = policy_loss(in, {}), seen = policy_loss(bad, {});
  right.loss.backward();
  seen.loss.backward();
  EXPECT_EQ(right.loss.item<double>(), seen.loss.item<double>());
  EXPECT_TRUE(at::allclose(in.logprobs_T.grad(), bad.logprobs_T.grad(), 0, 0));
}

TEST(PolicyLoss, OnPolicyGradientIsMinusTheAdvantage) {
  PolicyLossInput in = example();
  in.old_T = in.logprobs_T.detach();
  Algorithm algorithm;
  algorithm.aggregation = Aggregation::kTokenMean;
  const PolicyLoss loss = policy_loss(in, algorithm);
  loss.loss.backward();
  EXPECT_TRUE(at::allclose(in.logprobs_T.grad(), -in.advantages_T * in.trainable_T / 7, 1e-12, 1e-14));
  EXPECT_EQ(loss.sums.clipped, 0);
  EXPECT_EQ(loss.sums.ratio_max, 1);
}

TEST(PolicyLoss, ClippedTokensHaveNoGradient) {
  PolicyLossInput in = example();
  in.old_T = in.logprobs_T.detach() - 1;  // every ratio is e
  in.advantages_T = at::ones({10}, at::kDouble);
  const PolicyLoss loss = policy_loss(in, {});
  loss.loss.backward();
  EXPECT_EQ(in.logprobs_T.grad().abs().sum().item<double>(), 0);
  EXPECT_EQ(loss.sums.clipped, 7);
}

TEST(PolicyLoss, DualClipBoundsTheLossOfBadTokens) {
  PolicyLossInput in = example();
  in.old_T = in.logprobs_T.detach() - 3;  // every ratio is e^3 = 20
  in.advantages_T = at::full({10}, -1.0, at::kDouble);
  Algorithm algorithm;
  algorithm.aggregation = Aggregation::kTokenMean;
  EXPECT_NEAR(policy_loss(in, algorithm).loss.item<double>(), std::exp(3.0), 1e-9);
  algorithm.clip.dual = 3;
  const PolicyLoss loss = policy_loss(in, algorithm);
  EXPECT_NEAR(loss.loss.item<double>(), 3, 1e-12);
  EXPECT_EQ(loss.sums.clipped_dual, 7);
}

TEST(PolicyLoss, AnEmptyMicroBatchContributesNothing) {
  PolicyLossInput in = part(example(), 0, 0);
  in.offsets_S = in.offsets_S.narrow(0, 0, 0);
  const PolicyLoss loss = policy_loss(in, {});
  EXPECT_EQ(loss.loss.item<double>(), 0);
  EXPECT_EQ(loss.sums.tokens, 0);
}

TEST(KlPenalty, EstimatorsAgreeOnExpectationNearZero) {
  const at::Tensor p = random_T(1000, 9), q = p + random_T(1000, 10, 1e-3);
  const double k2 = kl_estimate(p, q, KlEstimator::kK2, 0).mean().item<double>(),
               k3 = kl_estimate(p, q, KlEstimator::kK3, 0).mean().item<double>();
  EXPECT_NEAR(k3 / k2, 1, 1e-2);
}

TEST(KlPenalty, FarFromTheReferenceTheEstimateAndItsPullGoOn) {
  for (const KlEstimator estimator : {KlEstimator::kK3, KlEstimator::kK3Straight})
    for (const double side : {1.0, -1.0}) {
      double value = 0, pull = 0;
      for (const double distance : {0.01, 0.5, 1.0, 2.5, 2.9, 3.1, 5.0, 9.0, 11.0, 19.0, 21.0, 100.0, 1000.0}) {
        const at::Tensor p = at::full({1}, side * distance, at::kFloat).requires_grad_();
        const at::Tensor kl = kl_estimate(p, at::zeros({1}), estimator, 0);
        kl.sum().backward();
        EXPECT_GT(kl.item<double>(), value) << side * distance;
        EXPECT_GE(p.grad().item<double>() * side, pull) << side * distance;
        value = kl.item<double>(), pull = p.grad().item<double>() * side;
      }
      EXPECT_TRUE(std::isfinite(value));
      EXPECT_GT(pull, 0.9);
    }
}

TEST(KlPenalty, ACutEstimateHasNoGradientThere) {
  const at::Tensor p = at::full({1}, 12.0, at::kDouble).requires_grad_();
  const at::Tensor kl = kl_estimate(p, at::zeros({1}), KlEstimator::kK3, 10);
  kl.sum().backward();
  EXPECT_EQ(kl.item<double>(), 10);
  EXPECT_EQ(p.grad().item<double>(), 0);
}

TEST(KlPenalty, IsZeroAgainstItself) {
  const PolicyLossInput in = example();
  Algorithm algorithm;
  algorithm.kl_coef = 0.1;
  const KlPenalty kl = kl_penalty(in.logprobs_T, in.logprobs_T.detach(), {in.trainable_T, in.offsets_S, 7, 2}, algorithm);
  EXPECT_EQ(kl.loss.item<double>(), 0);
  EXPECT_EQ(kl.sum, 0);
}

}  // namespace
}  // namespace tandem::algo
