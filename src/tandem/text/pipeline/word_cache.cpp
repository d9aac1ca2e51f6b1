// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/pipeline/word_cache.h"

#include <algorithm>
#include <cstring>

namespace tandem::text {

WordCache::WordCache() : slots_(std::make_unique<std::atomic<const Word*>[]>(kNumBuckets * kWays)) {}

WordCache::~WordCache() {
  for (size_t i = 0; i < kNumBuckets * kWays; ++i) delete slots_[i].load(std::memory_order_relaxed);
}

uint64_t WordCache::hash_of(std::string_view piece) {
  uint64_t hash = piece.size();
  for (size_t at = 0; at < piece.size(); at += 8) {
    uint64_t part = 0;
    std::memcpy(&part, piece.data() + at, std::min<size_t>(8, piece.size() - at));
    hash = (hash ^ part) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 32;
  }
  return hash;
}

const WordCache::Word* WordCache::find(std::string_view piece, uint64_t hash) const {
  const auto* bucket = &slots_[(hash & (kNumBuckets - 1)) * kWays];
  for (size_t way = 0; way < kWays; ++way) {
    const Word* word = bucket[way].load(std::memory_order_acquire);
    if (!word) return nullptr;
    if (word->hash == static_cast<uint32_t>(hash >> 32) && word->num_bytes == piece.size() &&
        std::memcmp(word->bytes.data(), piece.data(), piece.size()) == 0)
      return word;
  }
  return nullptr;
}

void WordCache::keep(std::string_view piece, uint64_t hash, std::span<const int32_t> ids) {
  if (piece.size() > kMostBytes || ids.size() > kMostIds) return;
  auto* bucket = &slots_[(hash & (kNumBuckets - 1)) * kWays];
  if (bucket[kWays - 1].load(std::memory_order_relaxed)) return;
  auto word = std::make_unique<Word>();
  word->hash = static_cast<uint32_t>(hash >> 32);
  word->num_bytes = static_cast<uint8_t>(piece.size());
  word->num_ids = static_cast<uint8_t>(ids.size());
  std::memcpy(word->bytes.data(), piece.data(), piece.size());
  std::copy(ids.begin(), ids.end(), word->ids.begin());
  for (size_t way = 0; way < kWays; ++way) {
    const Word* none = nullptr;
    if (bucket[way].compare_exchange_strong(none, word.get(), std::memory_order_release, std::memory_order_relaxed)) {
      word.release();
      return;
    }
  }
}

}  // namespace tandem::text
