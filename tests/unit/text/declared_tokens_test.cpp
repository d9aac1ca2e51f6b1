// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/declared_tokens.h"

#include <gtest/gtest.h>

#include "../../error_text.h"
#include "../../temporary_folder.h"
#include "tandem/base/json_file.h"

namespace tandem::text {
namespace {

using Json = nlohmann::ordered_json;

// A folder with the fixtures' tokenizer and other files beside it.
class TokenFolder {
 public:
  TokenFolder()
      : folder_("declared"),
        fixture_(Json::parse(read_file(std::string(TANDEM_SOURCE_DIR) + "/tests/fixtures/tokenizer/declared.json"))) {}

  const Json& cases() const { return fixture_["cases"]; }
  std::string text() const { return fixture_["text"]; }
  std::string path() const { return folder_.path(); }
  Tokenizer load(const Json& config, const Json& added, const Json& map) const {
    write_file(folder_ / "tokenizer.json", fixture_["tokenizer"].dump());
    write_file(folder_ / "tokenizer_config.json", config.dump());
    write_file(folder_ / "added_tokens.json", added.dump());
    write_file(folder_ / "special_tokens_map.json", map.dump());
    return Tokenizer::load(folder_.path());
  }

 private:
  test::TemporaryFolder folder_;
  Json fixture_;
};

TEST(DeclaredTokens, AreThoseThatTransformersMakesOfTheFiles) {
  const TokenFolder folder;
  ASSERT_GE(folder.cases().size(), 25u);
  for (const Json& one : folder.cases()) {
    const Tokenizer tokenizer = folder.load(one["config"], one["added"], one["map"]);
    const auto ids = one["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.encode(folder.text()), ids) << one["name"];
    EXPECT_EQ(tokenizer.decode(ids), one["text"]) << one["name"];
    EXPECT_EQ(tokenizer.decode(ids, true), one["plain"]) << one["name"];
    EXPECT_EQ(tokenizer.eos_id(), one["eos"].get<int32_t>()) << one["name"];
    EXPECT_EQ(tokenizer.vocab_size(), one["size"].get<int64_t>()) << one["name"];
  }
}

TEST(DeclaredTokens, TokensOfTheModelsOwnMayHaveEitherName) {
  const TokenFolder folder;
  const Json tokens = {{"think_token", "<think>"}};
  const auto load = [&](const char* key) { return folder.load({{"eos_token", "<end>"}, {key, tokens}}, Json::object(), Json::object()); };
  const Tokenizer named = load("extra_special_tokens"), specific = load("model_specific_special_tokens");
  EXPECT_EQ(specific.encode("a<think>"), named.encode("a<think>"));
  EXPECT_EQ(specific.encode("a<think>").size(), named.encode("a").size() + 1);
  EXPECT_EQ(specific.vocab_size(), named.vocab_size());
}

TEST(DeclaredTokens, FilesThatContradictEachOtherAreBothNamed) {
  const TokenFolder folder;
  const auto decoder = [](const char* id, const char* content) { return Json{{"added_tokens_decoder", {{id, {{"content", content}}}}}}; };
  const struct {
    Json config, added;
    std::vector<std::string> parts;
  } wrong[] = {
      {decoder("2", "<new>"), Json::object(), {"tokenizer_config.json", "gives `<new>` the id 2", "/tokenizer.json gives that to `<end>`"}},
      {decoder("4", "<new>"), Json::object(), {"gives `<new>` the id 4", "tokenizer.json gives that to `a`"}},
      {decoder("18", "<end>"), Json::object(), {"gives `<end>` the id 18", "tokenizer.json gives it 2"}},
      {decoder("18", "b"), Json::object(), {"gives `b` the id 18", "tokenizer.json gives it 5"}},
      {decoder("25", "<new>"), Json::object(), {"gives `<new>` the id 25", "tokenizer.json is 18"}},
      {Json::object(), {{"<new>", 2}}, {"added_tokens.json", "gives `<new>` the id 2", "tokenizer.json gives that to `<end>`"}},
      {Json::object(), {{"<end>", 18}}, {"added_tokens.json", "gives `<end>` the id 18", "tokenizer.json gives it 2"}},
      {decoder("18", "<new>"), {{"<b>", 18}}, {"added_tokens.json", "tokenizer_config.json", "gives to `<new>`"}},
      {decoder("x", "<new>"), Json::object(), {"tokenizer_config.json", "has `x`, which is not a token id"}},
  };
  for (const auto& one : wrong) {
    const std::string error = test::error_of([&] { (void)folder.load(one.config, one.added, Json::object()); });
    for (const std::string& part : one.parts) EXPECT_NE(error.find(part), std::string::npos) << error << " lacks " << part;
  }
}

}  // namespace
}  // namespace tandem::text
