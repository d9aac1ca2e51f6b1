// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cpu/sampler.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tandem/base/error.h"
#include "tandem/base/rng.h"

namespace tandem::model::kernel::cpu {
namespace {

struct Logits {
  std::vector<float> values;
  int64_t num_shards = 1;

  Logits(int64_t n, uint64_t seed, double spread = 2.0) {
    RandomStream random(seed, 0);
    for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>(random.normal() * spread));
  }
  int64_t shard_size() const { return (std::ssize(values) + num_shards - 1) / num_shards; }
  Drawn draw(int64_t num_tokens, const DrawRule& sampling, double uniform) const {
    std::vector<const float*> shards;
    for (int64_t s = 0; s < num_shards; ++s) shards.push_back(values.data() + s * shard_size());
    return cpu::draw({shards, shard_size(), std::ssize(values), num_tokens}, sampling, uniform);
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
std::vector<double> counts(const Logits& logits, int64_t num_tokens, const DrawRule& sampling, int64_t n) {
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
    DrawRule sampling;
    sampling.temperature = temperature;
    expect_fits(counts(logits, 203, sampling, 100000), logits.softmax(temperature));
  }
}

TEST(Sampler, ATestOfTheDistributionSeesAWrongTemperature) {
  Logits logits(203, 1);
  DrawRule sampling;
  sampling.temperature = 1.05;
  const auto [statistic, degrees] = chi_square(counts(logits, 203, sampling, 100000), logits.softmax(1.0));
  EXPECT_GT(statistic, degrees + 4.5 * std::sqrt(2 * degrees) + 5);
}

TEST(Sampler, ShardsOfTheVocabularyDrawWhatTheWholeDraws) {
  Logits whole(192, 4), parts(192, 4);
  parts.num_shards = 4;
  RandomStream random(3, 3);
  for (int i = 0; i < 3000; ++i) {
    const double u = random.uniform();
    const Drawn a = whole.draw(180, {}, u), b = parts.draw(180, {}, u);
    EXPECT_EQ(a.token, b.token);
    EXPECT_NEAR(a.logprob, b.logprob, 1e-5);
  }
}

constexpr int64_t kLarge = 150'000;
const double kLast = std::nextafter(1.0, 0.0);  // the largest number a stream gives

TEST(Sampler, DrawsOfALargeVocabularyFitItsDistribution) {
  const Logits logits(kLarge, 21, 1.0);
  const std::vector<double> p = logits.softmax(1.0), count = counts(logits, kLarge, {}, 8000);
  std::vector<double> pooled_p = {0}, pooled_count = {0};  // neighbours, a hundredth of the mass each
  for (size_t i = 0; i < p.size(); ++i) {
    pooled_p.back() += p[i], pooled_count.back() += count[i];
    if (pooled_p.back() >= 0.01) pooled_p.push_back(0), pooled_count.push_back(0);
  }
  EXPECT_GE(pooled_p.size(), 95u);
  expect_fits(pooled_count, pooled_p);
}

// Evenly spaced numbers come out at the ids that the distribution function says: all of them, and the last ids closely.
TEST(Sampler, NoIdOfALargeVocabularyGetsWhatRoundingLeftOver) {
  for (double spread : {0.01, 1.0, 3.0}) {
    SCOPED_TRACE(testing::Message() << "spread " << spread);
    const Logits logits(kLarge, 22, spread);
    const std::vector<double> p = logits.softmax(1.0);
    std::vector<double> below = {0};  // mass of the ids below each
    for (double x : p) below.push_back(below.back() + x);
    const double ids_at_end = 50, share = 1 - below[static_cast<size_t>(kLarge - ids_at_end)];
    constexpr int kDraws = 1000;
    double worst = 0, count_of_last = 0;
    for (double from : {0.0, 1 - share})
      for (int i = 0; i < kDraws; ++i) {
        const double u = from + (1 - from) * (i + 0.5) / kDraws;
        const auto token = static_cast<size_t>(logits.draw(kLarge, {}, u).token);
        worst = std::max({worst, below[token] - u, u - below[token + 1]});
        count_of_last += from > 0 && token + 1 == p.size();
      }
    EXPECT_LT(worst, 5e-7) << "of the whole mass";
    EXPECT_NEAR(count_of_last, kDraws * p.back() / share, 1 + kDraws * 5e-7 / share);
  }
}

TEST(Sampler, AnIdWithoutMassIsNeverDrawn) {
  constexpr int64_t n = 20'000;
  for (float cold : {-500.0f, -INFINITY}) {
    Logits logits(n, 23, 0.5);
    for (size_t i = 0; i < n; ++i)
      if (i < 10 || i % 3 == 0 || i > n - 700) logits.values[i] = cold;
    for (const DrawRule& sampling : {DrawRule{}, DrawRule{.temperature = 0}, DrawRule{.top_p = 0.999999}, DrawRule{.top_k = n - 1},
                                     DrawRule{.temperature = 3, .top_p = 0.9999, .top_k = n}})
      for (int i = 0; i <= 100; ++i) {
        const Drawn drawn = logits.draw(n, sampling, std::min(i / 100.0, kLast));
        EXPECT_GT(logits.values[static_cast<size_t>(drawn.token)], -100) << drawn.token;
        EXPECT_TRUE(std::isfinite(drawn.logprob) && std::isfinite(drawn.kept_mass));
      }
  }
}

TEST(Sampler, ARowWithoutATokenThatMayBeDrawnIsAUserError) {
  Logits logits(20, 24);
  std::fill(logits.values.begin(), logits.values.begin() + 10, -INFINITY);
  EXPECT_NO_THROW(logits.draw(11, {}, 0.5));
  EXPECT_THROW(logits.draw(10, {}, 0.5), UserError);
}

TEST(Sampler, ALargeVocabularyInShardsDrawsWhatTheWholeDraws) {
  Logits whole(kLarge + 1, 25, 0.3), parts(kLarge + 1, 25, 0.3);
  parts.num_shards = 4;  // the last one is shorter
  RandomStream random(5, 5);
  for (const DrawRule& sampling : {DrawRule{}, DrawRule{.temperature = 0.7, .top_p = 0.9}, DrawRule{.top_k = 1000}})
    for (int i = 0; i < 100; ++i) {
      const double u = random.uniform();
      for (int64_t num_tokens : {kLarge - 7, kLarge + 1})
        EXPECT_EQ(whole.draw(num_tokens, sampling, u).token, parts.draw(num_tokens, sampling, u).token);
    }
}

// The rule itself: sort all ids, cut, walk.
struct Sorted {
  std::vector<int32_t> order;
  std::vector<double> weights;
  double mass = 0, of_all = 0;

  Sorted(const Logits& logits, int64_t num_tokens, const DrawRule& sampling) {
    const std::vector<float>& x = logits.values;
    for (int32_t i = 0; i < num_tokens; ++i) order.push_back(i);
    const auto at = [&](int32_t i) { return x[static_cast<size_t>(i)]; };
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return at(a) != at(b) ? at(a) > at(b) : a < b; });
    const double top = *std::max_element(x.begin(), x.end());
    for (float logit : x) of_all += std::exp((logit - top) / sampling.temperature);
    if (sampling.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(sampling.top_k)));
    double total = 0;
    for (int32_t i : order) total += weights.emplace_back(std::exp((at(i) - top) / sampling.temperature));
    size_t kept = 0;
    for (; kept < order.size() && (kept == 0 || mass < sampling.top_p * total); ++kept) mass += weights[kept];
    order.resize(kept);
  }
  int32_t draw(double uniform) const {
    size_t i = 0;
    for (double walked = weights[0]; i + 1 < order.size() && walked <= uniform * mass; walked += weights[i]) ++i;
    return order[i];
  }
};

TEST(Sampler, TopKAndTopPKeepAndDrawWhatASortWould) {
  const DrawRule all[] = {{.top_k = 1}, {.top_k = 6}, {.top_k = 200}, {.temperature = 0.6, .top_k = 100'000}, {.top_p = 1e-6},
                          {.top_p = 0.3}, {.top_p = 0.9}, {.temperature = 1.7, .top_p = 0.99}, {.top_p = 0.9999},
                          {.top_p = 0.8, .top_k = 40}, {.temperature = 0.5, .top_p = 0.95, .top_k = 3000}};
  for (int64_t n : {1, 2, 7, 203, 5000})
    for (double spread : {0.1, 2.0, 6.0})
      for (bool has_ties : {false, true}) {
        Logits logits(n, 26, spread);
        if (has_ties)
          for (float& x : logits.values) x = std::round(x);
        const int64_t num_tokens = n - n / 10;
        for (const DrawRule& sampling : all) {
          SCOPED_TRACE(testing::Message() << n << " ids, spread " << spread << ", ties " << has_ties << ", T " << sampling.temperature
                                          << ", top-k " << sampling.top_k << ", top-p " << sampling.top_p);
          const Sorted want(logits, num_tokens, sampling);
          for (int i = 0; i < 40; ++i) {
            const double u = (i + 0.5) / 40;
            ASSERT_EQ(logits.draw(num_tokens, sampling, u).token, want.draw(u)) << "at " << u;
          }
          EXPECT_EQ(logits.draw(num_tokens, sampling, 0).token, want.order.front());
          EXPECT_NEAR(logits.draw(num_tokens, sampling, 0).kept_mass, std::min(0.0, std::log(want.mass / want.of_all)), 3e-6);
        }
      }
}

TEST(Sampler, LogprobIsThatOfTheFullVocabulary) {
  Logits logits(203, 6);
  for (const DrawRule& sampling : {DrawRule{}, DrawRule{.temperature = 0.7}, DrawRule{.top_k = 5}, DrawRule{.temperature = 1.3, .top_p = 0.5}}) {
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
  DrawRule sampling{.top_k = 7};
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
  DrawRule sampling{.top_p = 0.6};
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
  for (const DrawRule& sampling : {DrawRule{}, DrawRule{.temperature = 0}, DrawRule{.top_p = 0.99}, DrawRule{.top_k = 20}}) {
    const auto count = counts(logits, 190, sampling, 5000);
    for (size_t i = 190; i < 203; ++i) EXPECT_EQ(count[i], 0) << i;
    EXPECT_LT(logits.draw(190, sampling, std::nextafter(1.0, 0.0)).token, 190);
  }
  EXPECT_NEAR(logits.draw(190, {}, 0.5).kept_mass, std::log(mass), 1e-4);
}

TEST(Sampler, WordsOfDrawsAreReadAndThoseOfLogitsThatAreNotFiniteAreRefused) {
  at::Tensor words = at::zeros({4, 3}, at::kFloat);
  words[0].view(at::kInt)[1] = 0x7fffffff;  // a NaN's bits, were it a number
  words[1][1] = -0.5;
  words[2][1] = -0.25;
  const std::vector<Drawn> drawn = draws_of(words);
  ASSERT_EQ(drawn.size(), 3u);
  EXPECT_EQ(drawn[1].token, 0x7fffffff);
  EXPECT_EQ(drawn[1].logprob, -0.5f);
  EXPECT_EQ(drawn[1].kept_mass, -0.25f);
  for (const double sum : {std::nan(""), HUGE_VAL}) {
    words[3][2] = sum;
    EXPECT_THROW((void)draws_of(words), NotFinite) << sum;
  }
}

}  // namespace
}  // namespace tandem::model::kernel::cpu
