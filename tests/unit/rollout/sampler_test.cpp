// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tandem/base/rng.h"

namespace tandem::rollout {
namespace {

struct Logits {
  std::vector<float> values;
  int64_t num_shards = 1;

  Logits(int64_t n, uint64_t seed, double spread = 2.0) {
    RandomStream random(seed, 0);
    for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>(random.normal() * spread));
  }
  int64_t shard_size() const { return static_cast<int64_t>(values.size()) / num_shards; }
  Drawn draw(int64_t num_tokens, const Sampling& sampling, double uniform) const {
    std::vector<const float*> shards;
    for (int64_t s = 0; s < num_shards; ++s) shards.push_back(values.data() + s * shard_size());
    return rollout::draw(shards, shard_size(), num_tokens, sampling, uniform);
  }
  std::vector<double> softmax(double temperature) const {
    const double top = *std::max_element(values.begin(), values.end());
    std::vector<double> p;
    for (float x : values) p.push_back(std::exp((x - top) / temperature));
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= sum;
    return p;
  }
};

// Draws n tokens; returns how often each came up.
std::vector<double> counts(const Logits& logits, int64_t num_tokens, const Sampling& sampling, int64_t n) {
  std::vector<double> count(logits.values.size());
  RandomStream random(17, 3);
  for (int64_t i = 0; i < n; ++i) ++count[static_cast<size_t>(logits.draw(num_tokens, sampling, random.uniform()).token)];
  return count;
}

// Pearson's statistic over the tokens of `p` (not normalised), and its degrees of freedom.
std::pair<double, double> chi_square(const std::vector<double>& count, const std::vector<double>& p) {
  const double n = std::accumulate(count.begin(), count.end(), 0.0), mass = std::accumulate(p.begin(), p.end(), 0.0);
  double statistic = 0, degrees = -1, rare_count = 0, rare_expected = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = n * p[i] / mass;
    if (expected < 5) {
      rare_count += count[i], rare_expected += expected;
      continue;
    }
    statistic += (count[i] - expected) * (count[i] - expected) / expected, ++degrees;
  }
  if (rare_expected > 5) statistic += (rare_count - rare_expected) * (rare_count - rare_expected) / rare_expected, ++degrees;
  return {statistic, degrees};
}

void expect_fits(const std::vector<double>& count, const std::vector<double>& p) {
  const auto [statistic, degrees] = chi_square(count, p);
  EXPECT_LT(statistic, degrees + 4.5 * std::sqrt(2 * degrees) + 5) << degrees << " degrees of freedom";
}

TEST(Sampler, DrawsTokensAsOftenAsTheSoftmaxSays) {
  for (double temperature : {0.6, 1.0, 1.7}) {
    Logits logits(203, 1);
    Sampling sampling;
    sampling.temperature = temperature;
    expect_fits(counts(logits, 203, sampling, 100000), logits.softmax(temperature));
  }
}

TEST(Sampler, ATestOfTheDistributionSeesAWrongTemperature) {
  Logits logits(203, 1);
  Sampling sampling;
  sampling.temperature = 1.05;
  const auto [statistic, degrees] = chi_square(counts(logits, 203, sampling, 100000), logits.softmax(1.0));
  EXPECT_GT(statistic, degrees + 4.5 * std::sqrt(2 * degrees) + 5);
}

TEST(Sampler, ShardsOfTheVocabularyDrawWhatTheWholeDraws) {
  Logits whole(192, 4), parts(192, 4);
  parts.num_shards = 4;
  int64_t other = 0;
  RandomStream random(3, 3);
  for (int i = 0; i < 3000; ++i) {
    const double u = random.uniform();
    const Drawn a = whole.draw(180, {}, u), b = parts.draw(180, {}, u);
    other += a.token != b.token;  // a threshold within rounding of a boundary may fall on either side
    EXPECT_TRUE(a.token != b.token || std::abs(a.logprob - b.logprob) <= 1e-5) << a.logprob << ", " << b.logprob;
  }
  EXPECT_LE(other, 2);
}

TEST(Sampler, LogprobIsThatOfTheFullVocabulary) {
  Logits logits(203, 6);
  for (const Sampling& sampling : {Sampling{}, Sampling{.temperature = 0.7}, Sampling{.top_k = 5}, Sampling{.temperature = 1.3, .top_p = 0.5}}) {
    const std::vector<double> p = logits.softmax(sampling.temperature);
    for (double u : {0.0, 0.3, 0.77, 0.999999}) {
      const Drawn drawn = logits.draw(203, sampling, u);
      EXPECT_NEAR(drawn.logprob, std::log(p[static_cast<size_t>(drawn.token)]), 1e-4);
    }
  }
}

TEST(Sampler, GreedyTakesTheLargestAndReportsItsLogprobAtTemperatureOne) {
  Logits logits(203, 8);
  const auto best = std::max_element(logits.values.begin(), logits.values.end()) - logits.values.begin();
  const Drawn drawn = logits.draw(203, {.temperature = 0}, 0.4);
  EXPECT_EQ(drawn.token, best);
  EXPECT_NEAR(drawn.logprob, std::log(logits.softmax(1.0)[static_cast<size_t>(best)]), 1e-4);
}

TEST(Sampler, TopKKeepsKTokensAndTheirMass) {
  Logits logits(203, 9);
  std::vector<double> p = logits.softmax(1.0), sorted = p;
  std::sort(sorted.rbegin(), sorted.rend());
  const double mass = std::accumulate(sorted.begin(), sorted.begin() + 7, 0.0);
  for (double& x : p) x = x >= sorted[6] ? x : 0;
  Sampling sampling{.top_k = 7};
  const auto count = counts(logits, 203, sampling, 20000);
  for (size_t i = 0; i < p.size(); ++i)
    EXPECT_TRUE(p[i] > 0 || count[i] == 0) << i;
  expect_fits(count, p);
  EXPECT_NEAR(logits.draw(203, sampling, 0.5).kept_mass, std::log(mass), 1e-4);
}

TEST(Sampler, TopPKeepsTheFewestTokensThatReachIt) {
  Logits logits(203, 10);
  std::vector<double> p = logits.softmax(1.0), sorted = p;
  std::sort(sorted.rbegin(), sorted.rend());
  double mass = 0;
  size_t kept = 0;
  while (mass < 0.6) mass += sorted[kept++];
  for (double& x : p) x = x >= sorted[kept - 1] ? x : 0;
  Sampling sampling{.top_p = 0.6};
  const auto count = counts(logits, 203, sampling, 20000);
  for (size_t i = 0; i < p.size(); ++i)
    EXPECT_TRUE(p[i] > 0 || count[i] == 0) << i;
  expect_fits(count, p);
  EXPECT_NEAR(logits.draw(203, sampling, 0.5).kept_mass, std::log(mass), 1e-4);
}

TEST(Sampler, PaddingIdsAreNeverDrawnAndTheirMassIsReported) {
  Logits logits(203, 11);
  for (size_t i = 190; i < 203; ++i) logits.values[i] = 6;  // padding is likelier than all else
  std::vector<double> p = logits.softmax(1.0);
  const double mass = std::accumulate(p.begin(), p.begin() + 190, 0.0);
  std::fill(p.begin() + 190, p.end(), 0.0);
  for (const Sampling& sampling : {Sampling{}, Sampling{.temperature = 0}, Sampling{.top_p = 0.99}, Sampling{.top_k = 20}}) {
    const auto count = counts(logits, 190, sampling, 5000);
    for (size_t i = 190; i < 203; ++i) EXPECT_EQ(count[i], 0) << i;
    EXPECT_LT(logits.draw(190, sampling, std::nextafter(1.0, 0.0)).token, 190);
  }
  EXPECT_NEAR(logits.draw(190, {}, 0.5).kept_mass, std::log(mass), 1e-4);
}

}  // namespace
}  // namespace tandem::rollout
