// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/unicode.h"

#include <gtest/gtest.h>

#include <chrono>

#include "tandem/base/error.h"
#include "tandem/text/pipeline/split_pattern.h"
#include "tandem/text/regex.h"

namespace tandem::text {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

TEST(Utf8, EachMaximalIllFormedPartBecomesOneReplacement) {
  EXPECT_EQ(repair_utf8("a\xF0\x9F\x98z"), "a" + kBad + "z");         // a character without its last byte
  EXPECT_EQ(repair_utf8("\xE0\x80\x80"), kBad + kBad + kBad);         // overlong
  EXPECT_EQ(repair_utf8("\xED\xA0\x80"), kBad + kBad + kBad);         // surrogate
  EXPECT_EQ(repair_utf8("\xF0\x9F\x98\x80"), "\xF0\x9F\x98\x80");
  EXPECT_TRUE(utf8_step("\xE2\x82").incomplete);
  EXPECT_FALSE(utf8_step("\xE2x").incomplete);
}

TEST(Nfc, ComposesAndOrdersMarks) {
  EXPECT_EQ(nfc("e\xCC\x81"), "\xC3\xA9");
  EXPECT_EQ(nfc("\xE2\x84\xAB"), "\xC3\x85");                          // the Angstrom sign
  EXPECT_EQ(nfc("a\xCC\x81\xCC\xA3"), "\xE1\xBA\xA1\xCC\x81");         // the mark below comes first
  EXPECT_EQ(nfc("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB"), "\xED\x95\x9C");  // Hangul
}

TEST(Nfc, IsNotQuadraticInARunOfMarks) {
  std::string text = "a";
  for (int i = 0; i < 200000; ++i) text += i % 2 ? "\xCC\x81" : "\xCC\xA3";
  const auto begin = std::chrono::steady_clock::now();
  nfc(text);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(Regex, ABadPatternIsTheUsersError) { EXPECT_THROW(Regex("(", "test"), UserError); }

TEST(Regex, AnEndlessSearchFindsNothingAndIsAnErrorOfAScan) {
  const Regex endless("(a+)+$", "test");
  const std::string text = std::string(60, 'a') + "b";
  EXPECT_FALSE(endless.found_in(text));
  EXPECT_THROW(Regex::Scan(endless, text).next(), UserError);
}

// The split of Llama 3, Qwen and others, on more characters than a search has steps at least.
TEST(Regex, ALongTextIsSearchedLonger) {
  const std::string text(3'000'000, ' ');
  int64_t end = 0;
  compile({R"(\s*[\r\n]+|\s+(?!\S)|\s+)", true, "test"}).each_match(text, [&](size_t, size_t to) { end = static_cast<int64_t>(to); });
  EXPECT_EQ(end, std::ssize(text));
}

TEST(CharSet, SpaceIsUnicodeWhiteSpaceAndNothingElse) {
  const Regex space = compile({R"(\s)", true, "test"}), other = compile({R"(\S)", true, "test"});
  EXPECT_TRUE(space.found_in("\u0085"));
  EXPECT_TRUE(space.found_in("\u3000"));
  EXPECT_FALSE(space.found_in("\u180E"));
  EXPECT_FALSE(other.found_in("\u2028"));
}

TEST(Unicode, NormalisingAroundMarksIsNormalisingTheWhole) {
  EXPECT_EQ(nfc("xe\u0323\u0301y\u1100\u1161\u11A8z"), "x\u1EB9\u0301y\uAC01z");
  EXPECT_TRUE(is_nfc("\uAC01 \u1EB9"));
  EXPECT_FALSE(is_nfc("\u212B"));  // the sign of the unit is the letter
}

}  // namespace
}  // namespace tandem::text
