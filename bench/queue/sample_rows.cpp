// SPDX-License-Identifier: Apache-2.0
#include "queue/sample_rows.h"

#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/rng.h"

namespace tandem::bench {
namespace {

enum Field : size_t { kTokens, kLogprobs, kReward, kLength, kGroup };

}  // namespace

std::vector<queue::CacheField> SampleRows::fields() {
  const std::vector<int64_t> whole;
  const std::vector<float> real;
  return {{"tokens", whole}, {"logprobs", real}, {"reward", real}, {"length", whole}, {"group", whole}};
}

Row row_of(const queue::TensorCache& cache, data::SampleId id) {
  return {id, cache.read<int64_t>(id, kTokens), cache.read<float>(id, kLogprobs), cache.read<float>(id, kReward)[0],
          cache.read<int64_t>(id, kLength)[0], cache.read<int64_t>(id, kGroup)[0]};
}

int64_t SampleRows::length(int64_t id) const {
  if (!lengths.empty()) return lengths[static_cast<size_t>(id) % lengths.size()];
  return ragged ? RandomStream(seed, static_cast<uint64_t>(id)).below(seq - seq / 8 + 1) + seq / 8 : seq;
}

// Cheap, and different for every token of a batch.
int64_t SampleRows::token(int64_t id, int64_t t) const { return static_cast<int64_t>(seed) + id * seq + t; }
float SampleRows::logprob(int64_t id, int64_t t) const { return -static_cast<float>(token(id, t) % 65521) / 4096; }
float SampleRows::reward(int64_t id) { return static_cast<float>(id % 97); }

data::Fields SampleRows::columns_of(std::span<const data::SampleId> ids) const {
  std::vector<int64_t> tokens, entries, groups;
  std::vector<float> logprobs, rewards;
  for (data::SampleId sample : ids) {
    const int64_t id = value(sample), n = length(id);
    entries.push_back(n), groups.push_back(id / kGroupSize), rewards.push_back(reward(id));
    for (int64_t t = 0; t < n; ++t) tokens.push_back(token(id, t)), logprobs.push_back(logprob(id, t));
  }
  const std::vector<int64_t> each(ids.size(), 1);
  data::Fields made;
  made["group"] = {std::move(groups), each};
  made["tokens"] = {std::move(tokens), entries};
  made["logprobs"] = {std::move(logprobs), entries};
  made["length"] = {std::move(entries), each};
  made["reward"] = {std::move(rewards), each};
  return made;
}

int64_t SampleRows::num_bytes(std::span<const data::SampleId> ids) const {
  constexpr int64_t kOfToken = sizeof(int64_t) + sizeof(float), kOfSample = sizeof(float) + 2 * sizeof(int64_t);
  int64_t bytes = 0;
  for (data::SampleId sample : ids) bytes += length(value(sample)) * kOfToken + kOfSample;
  return bytes;
}

void SampleRows::check(const Row& row) const {
  const int64_t id = value(row.id), n = length(id);
  TANDEM_CHECK(row.length == n && row.group == id / kGroupSize && row.reward == reward(id), "sample ", id);
  TANDEM_CHECK(std::ssize(row.tokens) == n && std::ssize(row.logprobs) == n, "lengths of sample ", id);
  for (int64_t t = 0; t < n; ++t)
    TANDEM_CHECK(row.tokens[static_cast<size_t>(t)] == token(id, t) && row.logprobs[static_cast<size_t>(t)] == logprob(id, t), "token ", t,
                 " of sample ", id);
}

}  // namespace tandem::bench
