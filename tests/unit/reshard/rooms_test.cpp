// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/rooms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tandem::reshard {
namespace {

// What a walk over all buckets finds, where those count as full in which a search may see no room: under a 64th of a bucket.
int32_t first_by_walking(const std::vector<const Rooms*>& rooms, int64_t bytes, int32_t earliest) {
  for (int32_t bucket = earliest;; ++bucket)
    if (std::ranges::all_of(rooms, [&](const Rooms* r) { return r->in(bucket) >= bytes; })) return bucket;
}

// Takes random bytes from the first bucket with room in all, as placing transfers does, and looks at every answer.
void check_search(int64_t whole, size_t num_rooms, uint32_t seed) {
  SCOPED_TRACE(testing::Message() << num_rooms << " with buckets of " << whole << " bytes, seed " << seed);
  std::mt19937 random(seed);
  std::vector<Rooms> rooms(num_rooms, Rooms(whole));
  const int64_t full = whole / 64;
  for (int round = 0; round < 2000; ++round) {
    std::vector<const Rooms*> asked;
    for (const Rooms& r : rooms)
      if (asked.empty() || random() % 2 == 0) asked.push_back(&r);
    const int64_t bytes = 1 + static_cast<int64_t>(random()) % (random() % 8 == 0 ? whole : std::max<int64_t>(1, whole / 8));
    const auto earliest = static_cast<int32_t>(random() % 200);
    const int32_t found = Rooms::first_in_all(asked, bytes, earliest);
    ASSERT_GE(found, first_by_walking(asked, bytes, earliest));
    ASSERT_LE(found, first_by_walking(asked, std::max(bytes, full), earliest));
    for (Rooms& r : rooms)
      if (std::ranges::find(asked, &r) != asked.end()) {
        ASSERT_GE(r.in(found), bytes);
        r.set(found, r.in(found) - bytes);
      }
  }
}

TEST(Rooms, TheFirstBucketWithRoomInAllIsFound) {
  for (int64_t whole : {1, 2, 7, 100, 255, 256, 300, 1000, 4096, 1 << 20})
    for (size_t num_rooms : {size_t{1}, size_t{2}, size_t{4}})
      for (uint32_t seed : {1u, 2u, 3u}) check_search(whole, num_rooms, seed);
}

}  // namespace
}  // namespace tandem::reshard
