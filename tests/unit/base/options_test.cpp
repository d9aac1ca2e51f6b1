// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/options.h"

#include <gtest/gtest.h>

#include "tandem/base/error.h"

namespace tandem {
namespace {

struct Options {
  int64_t block_tokens = 16;
  double temperature = 1.0;
  std::string mode = "sync";
  std::vector<std::string> stop;
};
void describe(OptionVisitor& field, Options& o) {
  field("block_tokens", o.block_tokens, "Tokens in a block.", zero_or_power_of_two(1));
  field("temperature", o.temperature, "Temperature.", at_least(0));
  field("mode", o.mode, "Mode.", one_of({"sync", "stale"}));
  field("stop", o.stop, "Stop texts.");
}

TEST(Options, AreListedUnderTheirDottedPath) {
  Options o;
  OptionList list;
  list.section("rollout", o, "The engine.");
  ASSERT_EQ(list.entries.size(), 4u);
  EXPECT_EQ(list.entries[1].path, "rollout.temperature");
}

TEST(Options, AreSetFromText) {
  Options o;
  OptionList list;
  describe(list, o);
  set_option(list.entries[0], "32", "test");
  set_option(list.entries[3], "[a, 'b c']", "test");
  EXPECT_EQ(o.block_tokens, 32);
  EXPECT_EQ(o.stop, (std::vector<std::string>{"a", "b c"}));
}

TEST(Options, AListIsAFlowSequenceOfYaml) {
  Options o;
  OptionList list;
  describe(list, o);
  const std::pair<const char*, std::vector<std::string>> lists[] = {{"[\"a, b\", 'it''s', c d]", {"a, b", "it's", "c d"}},
                                                                    {"[\"\\n\\n\", \"a\\\\d\", \"\\x01\"]", {"\n\n", "a\\d", "\x01"}},
                                                                    {" a ,\"b\" ", {"a", "b"}},
                                                                    {"[' ', \"\"]", {" ", ""}},
                                                                    {"[]", {}},
                                                                    {"", {}}};
  for (const auto& [text, items] : lists) {
    set_option(list.entries[3], text, "test");
    EXPECT_EQ(o.stop, items) << text;
  }
  for (const char* text : {"[a", "[\"a]", "['a' b]", "[a, [b]]", "[\"\\q\"]", "[,a]", "[a{1,2}]"})
    EXPECT_THROW(set_option(list.entries[3], text, "test"), UserError) << text;
}

TEST(Options, EveryTextReadsBackAsItWasWritten) {
  Options o;
  OptionList list;
  describe(list, o);
  std::string all;
  for (char c = 1; c > 0 && c < 127; ++c) all += c;
  const std::vector<std::string> stop = {"\n\n", "a\\d", "say \"no\", 'yes'", "\r\t\x7f", "", " ", "[x]", all};
  o.stop = stop;
  const std::string text = option_text(list.entries[3].ref.value);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  set_option(list.entries[3], text, "test");
  EXPECT_EQ(o.stop, stop);
}

TEST(Options, SayWhatWouldBeRight) {
  Options o;
  OptionList list;
  describe(list, o);
  try {
    set_option(list.entries[0], "24", "recipe.yaml");
    FAIL();
  } catch (const UserError& e) {
    EXPECT_STREQ(e.what(), "recipe.yaml: block_tokens is 24 (expected 0, or a power of two of at least 1)");
  }
  EXPECT_THROW(set_option(list.entries[0], "many", "x"), UserError);
  EXPECT_THROW(set_option(list.entries[1], "-1", "x"), UserError);
  EXPECT_THROW(set_option(list.entries[2], "async", "x"), UserError);
}

TEST(Options, NearestNameForgivesATypo) {
  EXPECT_EQ(nearest_name("temprature", {"temperature", "top_p"}), "temperature");
}

TEST(Options, NearNameIsSilentWhereNothingIsLikelyMeant) {
  EXPECT_EQ(near_name("temprature", {"temperature", "top_p"}), "temperature");
  EXPECT_EQ(near_name("prompt", {"level", "text"}), "");
  EXPECT_EQ(near_name("prompt", {"prompts", "level"}), "prompts");
  EXPECT_EQ(near_name("prompt", {}), "");
}

}  // namespace
}  // namespace tandem
