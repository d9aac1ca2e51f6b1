// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/stream.h"

#include <gtest/gtest.h>

#include "tandem/base/rng.h"

namespace tandem::text {
namespace {

Tokenizer byte_tokenizer() {
  TokenizerSpec spec;
  spec.bpe.where = "bytes";
  for (int byte = 0; byte < 256; ++byte) {
    spec.names[byte] = byte_symbols()[static_cast<size_t>(byte)];
    spec.bpe.vocab[std::string(1, static_cast<char>(byte))] = byte;
  }
  return Tokenizer(std::move(spec), "bytes");
}

TEST(StreamingDetokenizer, GivesWholeCharactersOnly) {
  const Tokenizer tokenizer = byte_tokenizer();
  StreamingDetokenizer stream(tokenizer);
  const std::string smile = "\xF0\x9F\x98\x80";
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(stream.push(static_cast<uint8_t>(smile[i])), "");
  EXPECT_EQ(stream.push(static_cast<uint8_t>(smile[3])), smile);
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
}

TEST(StreamingDetokenizer, AgreesWithDecodingAtOnceForAnyBytes) {
  const Tokenizer tokenizer = byte_tokenizer();
  RandomStream random(3, 0);
  const uint8_t bytes[] = {0x41, 0xF0, 0x9F, 0x98, 0x80, 0xE2, 0x82, 0xAC, 0xC3, 0xA9, 0xFF, 0xED, 0xA0};
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<int32_t> ids;
    for (int64_t i = random.below(12); i > 0; --i) ids.push_back(bytes[random.below(13)]);
    StreamingDetokenizer stream(tokenizer);
    std::string joined;
    for (int32_t id : ids) joined += stream.push(id);
    EXPECT_EQ(joined + stream.finish(), tokenizer.decode(ids));
  }
}

TEST(StopMatcher, FindsAStopAcrossParts) {
  StopMatcher matcher({"</answer>", "\n\n"});
  EXPECT_FALSE(matcher.feed("42</ans"));
  const auto found = matcher.feed("wer> tail");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->cut, 2u);
  EXPECT_EQ(found->end, 11u);
  EXPECT_EQ(found->stop, 0u);
}

TEST(StopMatcher, DoesNotDependOnHowTheTextIsCut) {
  RandomStream random(9, 0);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text;
    for (int64_t i = random.below(20); i > 0; --i) text += "ab"[random.below(2)];
    StopMatcher whole({"abba", "bb", "aaa", ""}), parts({"abba", "bb", "aaa", ""});
    const auto expected = whole.feed(text);
    std::optional<StopMatcher::Found> found;
    for (char c : text) {
      found = parts.feed(std::string(1, c));
      if (found) break;
    }
    ASSERT_EQ(found.has_value(), expected.has_value()) << text;
    if (found) {
      EXPECT_EQ(found->cut, expected->cut) << text;
      EXPECT_EQ(found->end, expected->end) << text;
    }
  }
}

}  // namespace
}  // namespace tandem::text
