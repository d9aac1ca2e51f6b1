// SPDX-License-Identifier: Apache-2.0
#include "tandem/train/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "../../tiny_model.h"
#include "tandem/base/error.h"
#include "tandem/model/flops.h"

namespace tandem::train {
namespace {

std::vector<double> sums_of(const std::vector<double>& costs, const std::vector<int>& part, int parts) {
  std::vector<double> sums(static_cast<size_t>(parts));
  for (size_t i = 0; i < part.size(); ++i) sums.at(static_cast<size_t>(part[i])) += costs[i];
  return sums;
}

double largest_over_mean(const std::vector<double>& sums) {
  return *std::max_element(sums.begin(), sums.end()) * static_cast<double>(sums.size()) / std::accumulate(sums.begin(), sums.end(), 0.0);
}

// Of half a billion parameters: attention is a fifth of the cost of the longest rows below.
model::ModelConfig model_shape() {
  model::ModelConfig c = test::tiny_config();
  c.vocab_size = 151936, c.hidden_size = 896, c.intermediate_size = 4864, c.num_layers = 24;
  c.num_heads = 14, c.num_kv_heads = 2, c.head_dim = 64;
  return c;
}

// What verl counts and nobody computes: a product with the embedding's table. And what nobody wants: logits and the last layer's MLP of
// tokens that are no targets.
TEST(Flops, NeededAreVerlsWithoutTheEmbeddingAndWhatNobodyWants) {
  const model::ModelConfig c = model_shape();
  model::TokenWork work;
  work.add(640);
  const double by_verl = model::training_flops(c, work), embedding = 6.0 * 896 * 151936 * 640;
  EXPECT_NEAR(model::needed_flops(c, work, 640), by_verl - embedding, 1e-9 * by_verl);
  const double unwanted = 6.0 * (896.0 * 151936 + 896.0 * 896 + 3.0 * 896 * 4864) * 128;
  EXPECT_NEAR(model::needed_flops(c, work, 512), by_verl - embedding - unwanted, 1e-9 * by_verl);
}

TEST(Balance, LogNormalLengthsOver64RanksAreWithinTwoPercentOfTheMeanCost) {
  constexpr uint64_t kSeed = 20261122;
  for (uint64_t stream = 0; stream < 5; ++stream) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << " stream " << stream);
    RandomStream random(kSeed, stream);
    std::vector<double> costs;
    for (int i = 0; i < 64 * 16; ++i) {
      model::TokenWork work;
      work.add(300 + std::min<int64_t>(8192, std::llround(800 * std::exp(random.normal()))));
      costs.push_back(model::training_flops(model_shape(), work));
    }
    EXPECT_LE(largest_over_mean(sums_of(costs, balance(costs, 64), 64)), 1.02);
  }
}

TEST(Balance, FindsTheEvenSplitThatLargestFirstMisses) {
  // 8 7 6 5 4 into two: the largest to the lighter part gives 17 and 13; differencing 16 and 14; 8+7 and 6+5+4 are even.
  const std::vector<double> costs = {4, 5, 6, 7, 8};
  const std::vector<double> sums = sums_of(costs, balance(costs, 2), 2);
  EXPECT_EQ(*std::max_element(sums.begin(), sums.end()), 15);
}

TEST(Balance, GivesEachItemToOnePartAndTheSameEveryTime) {
  EXPECT_EQ(balance(std::vector<double>{3, 9, 1}, 1), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(balance(std::vector<double>{}, 3), std::vector<int>{});
  const std::vector<double> few = {9, 7};
  const std::vector<int> part = balance(few, 4);
  EXPECT_NE(part[0], part[1]);
  const std::vector<double> same(12, 5.0);
  for (double sum : sums_of(same, balance(same, 4), 4)) EXPECT_EQ(sum, 15);
  EXPECT_EQ(balance(same, 4), balance(same, 4));
}

}  // namespace
}  // namespace tandem::train
