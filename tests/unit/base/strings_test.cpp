// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/strings.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(Strings, WhiteSpaceGoesFromTheEndsAlone) {
  EXPECT_EQ(trimmed(" \t\r\n\f\va b\n "), "a b");
  EXPECT_EQ(trimmed(" \n"), "");
  EXPECT_EQ(trimmed(""), "");
}

TEST(Strings, ASeparatorAtAnEndStandsBesideAnEmptyPart) {
  EXPECT_EQ(split("a/b", '/'), (std::vector<std::string_view>{"a", "b"}));
  EXPECT_EQ(split("/a//", '/'), (std::vector<std::string_view>{"", "a", "", ""}));
  EXPECT_EQ(split("", '/'), std::vector<std::string_view>{""});
}

TEST(Strings, OnlyLettersOfAsciiBecomeSmall) { EXPECT_EQ(lower_ascii("Ab-Z\xC3\x84"), "ab-z\xC3\x84"); }

TEST(Strings, WhatIsPutInIsNotReplacedAgain) {
  EXPECT_EQ(replaced("aaa", "aa", "a"), "aa");
  EXPECT_EQ(replaced("a.b.", ".", ".."), "a..b..");
  EXPECT_EQ(replaced("abc", "", "x"), "abc");
}

TEST(Strings, SizesAreReadAsPeopleWriteThem) {
  const std::pair<const char*, int64_t> sizes[] = {{"1", 1},           {"2000000", 2000000}, {"5GB", 5000000000},  {"5 GB", 5000000000},
                                                   {"1.5KiB", 1536},   {"2gib", 2147483648}, {"10MB", 10000000},   {"1TB", 1000000000000},
                                                   {"0.5kb", 500},     {"7B", 7}};
  for (const auto& [text, bytes] : sizes) EXPECT_EQ(parse_bytes(text), bytes) << text;
  for (const char* wrong : {"", "GB", "0", "-1", "5G", "5 gigs", "1e9", "nan", "inf", "0.5", "9999999999TB", "5GB x", "5,5GB"})
    EXPECT_FALSE(parse_bytes(wrong)) << wrong;
}

TEST(Strings, ASmallModelIsNotNothing) {
  EXPECT_EQ(bytes_text(43'210), "43.2 KB");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(999'900'000), "999.9 MB");
  EXPECT_EQ(bytes_text(8'200'400'000), "8.200 GB");
}

}  // namespace
}  // namespace tandem
