// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cpu/sampler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "tandem/base/check.h"
#include "tandem/model/kernel/cpu/cpu.h"

namespace tandem::model::kernel::cpu {
namespace {

constexpr int64_t kBlockIds = 256;        // neighbours whose mass is summed together; a draw walks through one such block
constexpr double kLeastWeight = 1.2e-38;  // of the largest; the exponential of the row kernels ends there, too

// body(logits, first, n): each shard's part of the ids below `end`, which are `first` and so on.
template <class Body>
void for_shards(const LogitRow& row, int64_t end, const Body& body) {
  for (size_t s = 0; s < row.shards.size(); ++s) {
    const int64_t first = static_cast<int64_t>(s) * row.shard_size, n = std::min(end - first, row.shard_size);
    if (n > 0) body(row.shards[s], first, n);
  }
}

LogSoftmax softmax_of(const LogitRow& row, int64_t end, float inv_temperature) {
  std::vector<LogitStats> stats;
  const auto add = [&](const float* logits, int64_t, int64_t n) { stats.push_back(rows().fp.logit_stats(logits, n, inv_temperature)); };
  for_shards(row, end, add);
  return combine(stats, inv_temperature);
}

int32_t greedy(const LogitRow& row) {
  int64_t best = 0;
  for_shards(row, row.num_tokens, [&](const float* logits, int64_t first, int64_t n) {
    const int64_t token = first + rows().fp.argmax(logits, n);
    if (row[token] > row[best]) best = token;
  });
  return static_cast<int32_t>(best);
}

// `allowed` is that of the tokens which may be drawn.
int32_t plain(const LogitRow& row, const LogSoftmax& allowed, double uniform) {
  struct Block {
    const float* logits;
    int64_t first, size;
    double end;  // mass of the blocks up to this one
  };
  std::vector<Block> blocks;
  double total = 0;
  for_shards(row, row.num_tokens, [&](const float* logits, int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; i += kBlockIds) {
      const int64_t size = std::min(kBlockIds, n - i);
      total += rows().fp.mass(logits + i, size, allowed.inv_temperature, allowed.max);
      blocks.push_back({logits + i, first + i, size, total});
    }
  });
  const double threshold = uniform * total;  // below the total, in fp64 too
  const auto block = std::ranges::upper_bound(blocks, threshold, {}, &Block::end);
  TANDEM_CHECK(block != blocks.end(), "no token at ", uniform, " of a mass of ", total);
  const double before = block == blocks.begin() ? 0 : std::prev(block)->end;
  const auto& pick = rows().fp.pick;
  return static_cast<int32_t>(block->first + pick(block->logits, block->size, allowed.inv_temperature, allowed.max, threshold - before));
}

struct Candidate {
  float logit;
  int32_t token;
  double weight = 0;  // exp((logit - max) / T)
};

bool better(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.token < b.token; }

// The `most` best tokens with logits above `bound`, in no order.
std::vector<Candidate> best_tokens(const LogitRow& row, float bound, size_t most) {
  std::vector<Candidate> found;
  const auto drop_worst = [&] {
    std::nth_element(found.begin(), found.begin() + static_cast<int64_t>(most) - 1, found.end(), better);
    found.resize(most);
    bound = found.back().logit;  // an id that comes later must be above it
  };
  for_shards(row, row.num_tokens, [&](const float* logits, int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      if (!(logits[i] > bound)) continue;
      found.push_back({logits[i], static_cast<int32_t>(first + i)});
      if (found.size() == 2 * most) drop_worst();
    }
  });
  if (found.size() > most) drop_worst();
  return found;
}

// How many of the best are needed for reached(their mass), at least one; all if none reach it. Those come to the front, the worst of
// them last. Each turn halves what is undecided, so the cost is linear on average.
template <class Reached>
size_t num_needed(std::span<Candidate> all, const Reached& reached) {
  size_t begin = 0, end = all.size();  // the answer is above `begin`
  double before = 0;                   // mass of the first `begin`
  while (end - begin > 1) {
    const size_t middle = begin + (end - begin) / 2;
    const std::span<Candidate> undecided = all.subspan(begin, end - begin), upper = all.subspan(begin, middle - begin);
    std::nth_element(undecided.begin(), undecided.begin() + std::ssize(upper), undecided.end(), better);
    double mass = before;
    for (const Candidate& c : upper) mass += c.weight;
    if (reached(mass)) end = middle;
    else begin = middle, before = mass;
  }
  return end;
}

double mass_of(const LogitRow& row, float inv_temperature, float max) {
  double total = 0;
  const auto add = [&](const float* logits, int64_t, int64_t n) { total += rows().fp.mass(logits, n, inv_temperature, max); };
  for_shards(row, row.num_tokens, add);
  return total;
}

// With top-k, top-p or both; `top` is the largest logit that may be drawn.
Drawn filtered(const LogitRow& row, const DrawRule& rule, double uniform, const LogSoftmax& softmax, float top) {
  const float inv_temperature = softmax.inv_temperature;
  const bool takes_k = rule.top_k > 0;
  double total = takes_k ? 0 : mass_of(row, inv_temperature, top);
  // Ids of less weight have at most half of what top-p leaves out, all together.
  const double least = takes_k ? kLeastWeight : (1 - rule.top_p) / 2 * total / static_cast<double>(row.num_tokens);
  const float bound = std::nextafter(static_cast<float>(top + std::log(least) / inv_temperature), -std::numeric_limits<float>::infinity());
  const int64_t most = takes_k ? std::min<int64_t>(rule.top_k, row.num_tokens) : row.num_tokens;
  std::vector<Candidate> kept = best_tokens(row, bound, static_cast<size_t>(most));
  for (Candidate& c : kept) {
    c.weight = std::exp(static_cast<double>((c.logit - top) * inv_temperature));
    if (takes_k) total += c.weight;
  }
  if (rule.top_p < 1.0) kept.resize(num_needed(kept, [&](double mass) { return mass >= rule.top_p * total; }));
  double mass = 0;
  for (const Candidate& c : kept) mass += c.weight;
  const Candidate& drawn = kept[num_needed(kept, [&](double walked) { return walked > uniform * mass; }) - 1];
  const double log_mass = std::log(mass) + static_cast<double>(softmax.of(top));
  return {drawn.token, softmax.of(drawn.logit), std::min(0.0f, static_cast<float>(log_mass))};
}

}  // namespace

Drawn draw(const LogitRow& row, const DrawRule& rule, double uniform) {
  const int64_t room = row.shard_size * std::ssize(row.shards);
  TANDEM_CHECK(row.num_tokens > 0 && row.num_tokens <= row.vocab_size && row.vocab_size <= room, row.num_tokens, " of ", row.vocab_size,
               " tokens in shards of ", room);
  const bool is_greedy = rule.temperature == 0, takes_all = row.num_tokens == row.vocab_size;
  const float inv_temperature = is_greedy ? 1.0f : static_cast<float>(1.0 / rule.temperature);
  const LogSoftmax softmax = softmax_of(row, row.vocab_size, inv_temperature);
  const LogSoftmax allowed = takes_all ? softmax : softmax_of(row, row.num_tokens, inv_temperature);
  if (const float sum = softmax.max + softmax.log_sum; !std::isfinite(sum + allowed.max)) throw NotFinite(sum);
  if (!is_greedy && (rule.top_k > 0 || rule.top_p < 1.0)) return filtered(row, rule, uniform, softmax, allowed.max);
  Drawn drawn{};
  drawn.token = is_greedy ? greedy(row) : plain(row, allowed, uniform);
  if (!takes_all) drawn.kept_mass = std::min(0.0f, softmax.of(allowed.max) + allowed.log_sum);
  drawn.logprob = softmax.of(row[drawn.token]);
  return drawn;
}

}  // namespace tandem::model::kernel::cpu
