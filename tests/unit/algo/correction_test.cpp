// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/correction.h"

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include "tandem/base/error.h"

namespace tandem::algo {
namespace {

// Two sequences of two tokens; the last token is not trainable.
struct Pair {
  at::Tensor l_T = at::tensor({0.1, 1.0, -1.0, 9.0}, at::kDouble);
  at::Tensor trainable_T = at::tensor({1, 1, 1, 0}).to(at::kBool);
  at::Tensor offsets_S = at::tensor({int64_t{0}, int64_t{2}});
  Corrected by(const Correction& correction) const { return correct(l_T, at::zeros_like(l_T), trainable_T, offsets_S, correction); }
};

TEST(Correction, OfNothingKeepsEveryTokenAtOne) {
  const Corrected seen = Pair().by({});
  EXPECT_TRUE(at::equal(seen.weights_T, at::tensor({1.0, 1.0, 1.0, 0.0}, at::kDouble)));
  EXPECT_TRUE(at::equal(seen.trainable_T, Pair().trainable_T));
}

TEST(Correction, TruncatesOrZeroesWhatIsOutside) {
  const Corrected truncated = Pair().by({.level = WeightLevel::kToken, .upper = 2});
  EXPECT_EQ(truncated.weights_T[1].item<double>(), 2);
  EXPECT_NEAR(truncated.weights_T[2].item<double>(), std::exp(-1), 1e-12);
  const Corrected zeroed = Pair().by({.level = WeightLevel::kToken, .outside = Outside::kZero, .lower = 0.5, .upper = 2});
  EXPECT_EQ(zeroed.weights_T[1].item<double>(), 0);
  EXPECT_EQ(zeroed.weights_T[2].item<double>(), 0);
  EXPECT_TRUE(at::equal(zeroed.trainable_T, Pair().trainable_T)) << "a weight of 0 still counts in the denominator";
}

TEST(Correction, ByPartsIsThatOfTheBatch) {
  const Correction correction = {.level = WeightLevel::kToken, .normalize = true};
  Corrected whole = Pair().by(correction);
  normalize(whole, whole.weights);
  Pair first, second;
  first.l_T = first.l_T.narrow(0, 0, 2), first.trainable_T = first.trainable_T.narrow(0, 0, 2);
  first.offsets_S = first.offsets_S.narrow(0, 0, 1);
  second.l_T = second.l_T.narrow(0, 2, 2), second.trainable_T = second.trainable_T.narrow(0, 2, 2);
  second.offsets_S = second.offsets_S.narrow(0, 0, 1);
  Corrected a = first.by(correction), b = second.by(correction);
  const WeightSum all = {a.weights.sum + b.weights.sum, a.weights.count + b.weights.count};
  normalize(a, all);
  normalize(b, all);
  EXPECT_NEAR((a.weights_T - whole.weights_T.narrow(0, 0, 2)).abs().max().item<double>(), 0, 1e-12);
  EXPECT_NEAR((b.weights_T - whole.weights_T.narrow(0, 2, 2)).abs().max().item<double>(), 0, 1e-12);
  EXPECT_NEAR(whole.weights_T.sum().item<double>() / 3, 1, 1e-12);
}

TEST(Correction, RejectsWholeSequencesByTheirWorstToken) {
  const Corrected seen = Pair().by({.rejections = rejections_of("seq_max_k2", "0.4", "test")});
  EXPECT_TRUE(at::equal(seen.trainable_T, at::tensor({0, 0, 0, 0}).to(at::kBool)));
}

TEST(Correction, RulesWithoutSenseAreRefusedByName) {
  for (const auto& [rules, bounds] : std::vector<std::pair<std::string, std::string>>{
           {"token_k4", "1"}, {"row_k1", "1"}, {"token_k2", "0.5_2"}, {"token_k1", "2_0.5"}, {"token_k1,token_k2", "1"}, {"token_k1", "-1"},
           {"token_k1", "x"}, {"token_k1", "1_2_3"}}) {
    EXPECT_THROW(rejections_of(rules, bounds, "algo.rejection"), UserError) << rules << " " << bounds;
  }
}

}  // namespace
}  // namespace tandem::algo
