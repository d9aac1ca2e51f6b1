// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/rng.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

// Known-answer vectors of the Random123 library (kat_vectors, philox4x32 10 rounds).
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(RandomStream, ContinuesFromASavedPosition) {
  RandomStream a(7, 3);
  for (int i = 0; i < 5; ++i) a.next_u64();
  RandomStream b(7, 3, a.position());
  EXPECT_EQ(a.next_u64(), b.next_u64());
}

TEST(RandomStream, DrawsOfDifferentStreamsDiffer) {
  EXPECT_NE(RandomStream(7, 3).next_u64(), RandomStream(7, 4).next_u64());
  EXPECT_NE(RandomStream(7, 3).next_u64(), RandomStream(8, 3).next_u64());
}

TEST(RandomStream, BelowCoversItsRangeEvenly) {
  RandomStream stream(1, 1);
  std::array<int, 10> counts{};
  for (int i = 0; i < 100000; ++i) ++counts[static_cast<size_t>(stream.below(10))];
  for (int count : counts) EXPECT_NEAR(count, 10000, 500);
}

}  // namespace
}  // namespace tandem
