// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where buckets have room, for a search that does not walk over those that are full.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tandem/base/check.h"
#include "tandem/reshard/tuning.h"

namespace tandem::reshard {

/// How many more bytes each bucket takes, of buckets without end. All begin with the same room, and room only shrinks.
class Rooms {
 public:
  /// `whole`: bytes of an empty bucket, at least one.
  explicit Rooms(int64_t whole) {
    for (size_t s = 0; s < kSizes; ++s) sizes_[s] = std::max<int64_t>(tuning::size_of_room(whole, s), 1);
  }

  int64_t in(int32_t bucket) const { return bucket < std::ssize(bytes_) ? bytes_[static_cast<size_t>(bucket)] : sizes_[0]; }

  void set(int32_t bucket, int64_t bytes) {
    const auto b = static_cast<size_t>(bucket);
    if (b >= bytes_.size()) bytes_.resize(b + 1, sizes_[0]), too_large_.resize(b + 1);
    bytes_[b] = bytes;
    for (uint8_t& s = too_large_[b]; s < kSizes && bytes < sizes_[s]; ++s) full_[s].add(b);
  }

  /// The first bucket from `earliest` on where each of `rooms`, at most four, has so many bytes; nearly full ones are passed over.
  static int32_t first_in_all(std::span<const Rooms* const> rooms, int64_t bytes, int32_t earliest) {
    const bool fits = std::ranges::all_of(rooms, [&](const Rooms* r) { return bytes <= r->sizes_[0]; });
    TANDEM_CHECK(fits && rooms.size() <= 4, bytes, " bytes fit no bucket");
    std::array<const Full*, 4> all{};
    size_t word = static_cast<size_t>(earliest) / 64;
    for (size_t i = 0; i < rooms.size(); ++i) {
      all[i] = &rooms[i]->of_size(bytes);
      word = std::max(word, all[i]->first);
    }
    for (;; ++word) {
      uint64_t full = word == static_cast<size_t>(earliest) / 64 ? (uint64_t{1} << earliest % 64) - 1 : 0;
      for (size_t i = 0; i < rooms.size(); ++i) full |= all[i]->word(word);
      for (; full != kAll; full |= full + 1) {
        const auto bucket = static_cast<int32_t>(word * 64 + static_cast<size_t>(std::countr_one(full)));
        if (std::ranges::all_of(rooms, [&](const Rooms* r) { return r->in(bucket) >= bytes; })) return bucket;
      }
    }
  }

 private:
  static constexpr size_t kSizes = tuning::kNum_sizes;
  static constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();
  struct Full {
    std::vector<uint64_t> words;  // a bit for each bucket
    size_t first = 0;             // the words before it are all ones

    uint64_t word(size_t number) const { return number < words.size() ? words[number] : 0; }
    void add(size_t bucket) {
      words.resize(std::max(words.size(), bucket / 64 + 1));
      words[bucket / 64] |= uint64_t{1} << bucket % 64;
      while (word(first) == kAll) ++first;
    }
  };

  /// The buckets with less room than the largest of the sizes that is at most `bytes`, or else than the last.
  const Full& of_size(int64_t bytes) const {
    const auto size = std::ranges::find_if(sizes_, [&](int64_t s) { return s <= bytes; });
    return full_[std::min(static_cast<size_t>(size - sizes_.begin()), kSizes - 1)];
  }

  std::array<int64_t, kSizes> sizes_{};  // descend
  std::vector<int64_t> bytes_;           // by bucket
  std::vector<uint8_t> too_large_;       // by bucket: how many of the sizes have no room
  std::array<Full, kSizes> full_;        // by size
};

}  // namespace tandem::reshard
