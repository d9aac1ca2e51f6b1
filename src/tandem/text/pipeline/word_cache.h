// SPDX-License-Identifier: Apache-2.0
#pragma once
// What short pieces were merged to: most words of a text have been met before.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace tandem::text {

/// A fixed number of words, first come, first kept: nothing is ever replaced, so a word that was found stays valid.
/// Threads  find and keep may run in any number of threads at once, without a lock.
class WordCache {
 public:
  static constexpr size_t kMostBytes = 26, kMostIds = 8;
  struct Word {
    uint32_t hash;
    uint8_t num_bytes, num_ids;
    std::array<char, kMostBytes> bytes;
    std::array<int32_t, kMostIds> ids;
  };

  WordCache();
  ~WordCache();
  WordCache(const WordCache&) = delete;
  WordCache& operator=(const WordCache&) = delete;

  static uint64_t hash_of(std::string_view piece);
  /// nullptr if the piece is not kept.
  const Word* find(std::string_view piece, uint64_t hash) const;
  /// Does nothing for a piece that is too long or finds no room.
  void keep(std::string_view piece, uint64_t hash, std::span<const int32_t> ids);

 private:
  static constexpr size_t kNumBuckets = 1 << 14, kWays = 4;
  std::unique_ptr<std::atomic<const Word*>[]> slots_;
};

}  // namespace tandem::text
