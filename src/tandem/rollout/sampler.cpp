// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/sampler.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/model/kernel/function.h"

namespace tandem::rollout {
namespace {

using model::kernel::LogitStats;
using model::kernel::LogSoftmax;
using model::kernel::rows;

struct Row {
  std::span<const float* const> shards;
  int64_t shard_size;
  float operator[](int64_t token) const { return shards[static_cast<size_t>(token / shard_size)][token % shard_size]; }
  // Tokens of shard s that may be drawn.
  int64_t allowed(size_t s, int64_t num_tokens) const {
    return std::clamp<int64_t>(num_tokens - static_cast<int64_t>(s) * shard_size, 0, shard_size);
  }
};

std::vector<LogitStats> stats_of(const Row& row, int64_t num_tokens, float inv_temperature) {
  std::vector<LogitStats> stats;
  for (size_t s = 0; s < row.shards.size(); ++s)
    if (const int64_t n = row.allowed(s, num_tokens)) stats.push_back(rows().fp.logit_stats(row.shards[s], n, inv_temperature));
  return stats;
}

int32_t greedy(const Row& row, int64_t num_tokens) {
  int64_t best = 0;
  for (size_t s = 0; s < row.shards.size(); ++s) {
    const int64_t n = row.allowed(s, num_tokens);
    if (n == 0) break;
    const int64_t token = static_cast<int64_t>(s) * row.shard_size + rows().fp.argmax(row.shards[s], n);
    if (row[token] > row[best]) best = token;
  }
  return static_cast<int32_t>(best);
}

int32_t plain(const Row& row, const std::vector<LogitStats>& stats, int64_t num_tokens, float inv_temperature, double uniform) {
  float top = stats[0].max;
  for (const LogitStats& s : stats) top = std::max(top, s.max);
  std::vector<float> mass;
  float total = 0;
  for (const LogitStats& s : stats) {
    mass.push_back((1.0f + s.rest) * std::exp((s.max - top) * inv_temperature));
    total += mass.back();
  }
  float threshold = static_cast<float>(uniform) * total;
  size_t s = 0;
  while (s + 1 < mass.size() && threshold >= mass[s]) threshold -= mass[s++];
  const float scaled = threshold / std::exp((stats[s].max - top) * inv_temperature);
  return static_cast<int32_t>(static_cast<int64_t>(s) * row.shard_size +
                              rows().fp.pick(row.shards[s], row.allowed(s, num_tokens), inv_temperature, stats[s].max, scaled));
}

// The candidates top-k and top-p leave, best first, and the one that is drawn.
Drawn filtered(const Row& row, int64_t num_tokens, const Sampling& sampling, double uniform, const LogSoftmax& softmax) {
  std::vector<int32_t> order(static_cast<size_t>(num_tokens));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const auto better = [&](int32_t a, int32_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; };
  size_t kept = order.size();
  if (sampling.top_k > 0) kept = std::min(kept, static_cast<size_t>(sampling.top_k));
  if (kept < order.size()) std::nth_element(order.begin(), order.begin() + static_cast<int64_t>(kept) - 1, order.end(), better);
  order.resize(kept);
  std::sort(order.begin(), order.end(), better);
  std::vector<double> probabilities;
  double after_top_k = 0, mass = 0;
  for (int32_t t : order) {
    probabilities.push_back(std::exp(static_cast<double>(softmax.of(row[t]))));
    after_top_k += probabilities.back();
  }
  for (kept = 0; kept < order.size() && (kept == 0 || mass < sampling.top_p * after_top_k); ++kept) mass += probabilities[kept];
  double threshold = uniform * mass;
  size_t i = 0;
  while (i + 1 < kept && threshold >= probabilities[i]) threshold -= probabilities[i++];
  const float log_mass = std::min(0.0f, static_cast<float>(std::log(mass)));
  return {order[i], softmax.of(row[order[i]]), log_mass};
}

}  // namespace

Drawn draw(std::span<const float* const> shards, int64_t shard_size, int64_t num_tokens, const Sampling& sampling, double uniform) {
  const Row row{shards, shard_size};
  const int64_t vocabulary = shard_size * static_cast<int64_t>(shards.size());
  TANDEM_CHECK(num_tokens > 0 && num_tokens <= vocabulary, num_tokens, " of ", vocabulary, " tokens");
  const bool is_greedy = sampling.temperature == 0;
  const float inv_temperature = is_greedy ? 1.0f : static_cast<float>(1.0 / sampling.temperature);
  const std::vector<LogitStats> all = stats_of(row, vocabulary, inv_temperature);
  const LogSoftmax softmax = model::kernel::combine(all, inv_temperature);
  if (const float sum = softmax.max + softmax.log_sum; !std::isfinite(sum))
    throw UserError("model", join_text("the logits of a next token are not finite: their log-sum is ", sum),
                    "weights without NaN or infinities; in a run a lower train.lr, from the last good checkpoint");
  if (!is_greedy && (sampling.top_k > 0 || sampling.top_p < 1.0)) return filtered(row, num_tokens, sampling, uniform, softmax);
  Drawn drawn{};
  if (num_tokens == vocabulary) {
    drawn.token = is_greedy ? greedy(row, num_tokens) : plain(row, all, num_tokens, inv_temperature, uniform);
  } else {
    const std::vector<LogitStats> allowed = stats_of(row, num_tokens, inv_temperature);
    drawn.token = is_greedy ? greedy(row, num_tokens) : plain(row, allowed, num_tokens, inv_temperature, uniform);
    const LogSoftmax kept = model::kernel::combine(allowed, inv_temperature);
    drawn.kept_mass = std::min(0.0f, softmax.of(kept.max) + kept.log_sum);
  }
  drawn.logprob = softmax.of(row[drawn.token]);
  return drawn;
}

}  // namespace tandem::rollout
