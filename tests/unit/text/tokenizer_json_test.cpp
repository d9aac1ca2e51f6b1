// SPDX-License-Identifier: Apache-2.0
// Each kind of tokenizer.json against what the `tokenizers` package makes of it (tests/fixtures/make_tokenizer_cases.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "../../small_memory.h"
#include "tandem/base/error.h"
#include "tandem/base/rng.h"
#include "tandem/base/json_file.h"
#include "tandem/text/stream.h"
#include "tandem/text/tokenizer_files.h"
#include "tandem/text/unicode.h"

namespace tandem::text {
namespace {

using nlohmann::json;

const std::string kFolder = std::string(TANDEM_SOURCE_DIR) + "/tests/fixtures/tokenizer/";

Tokenizer fixture(const std::string& name) {
  return Tokenizer(tokenizer_json_spec(read_json_object(kFolder + name + ".json"), {}, name), name);
}

std::vector<std::string> fixture_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder))
    if (entry.path().extension() == ".jsonl") names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  return names;
}

class TokenizerJson : public testing::TestWithParam<std::string> {};

TEST_P(TokenizerJson, AgreesWithTheTokenizersPackage) {
  const Tokenizer tokenizer = fixture(GetParam());
  std::istringstream rows(read_file(kFolder + GetParam() + ".jsonl"));
  int64_t count = 0;
  for (std::string line; std::getline(rows, line); ++count) {
    const json row = json::parse(line);
    const std::string text = row["text"];
    const std::vector<int32_t> ids = row["ids"];
    EXPECT_EQ(tokenizer.encode(text), ids) << row["text"];
    EXPECT_EQ(tokenizer.encode(text, Special::kPlain), row["plain_ids"].get<std::vector<int32_t>>()) << row["text"];
    EXPECT_EQ(tokenizer.decode(ids), row["decoded"]) << row["text"];
    EXPECT_EQ(tokenizer.decode(ids, true), row["decoded_skip_special"]) << row["text"];
  }
  EXPECT_EQ(count, 100);
}

TEST_P(TokenizerJson, StreamsWhatItDecodes) {
  const Tokenizer tokenizer = fixture(GetParam());
  std::istringstream rows(read_file(kFolder + GetParam() + ".jsonl"));
  for (std::string line; std::getline(rows, line);) {
    const json row = json::parse(line);
    for (const bool skip : {false, true}) {
      StreamingDetokenizer stream(tokenizer, skip);
      std::string joined;
      for (int32_t id : row["ids"].get<std::vector<int32_t>>()) joined += stream.push(id);
      EXPECT_EQ(joined + stream.finish(), row[skip ? "decoded_skip_special" : "decoded"]) << row["text"];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, TokenizerJson, testing::ValuesIn(fixture_names()), [](const auto& info) { return info.param; });

TEST(TokenizerJson, EveryCharacterComesBackNormalised) {
  const Tokenizer tokenizer = fixture("qwen2");
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text), true), nfc(text)) << "U+" << std::hex << static_cast<uint32_t>(c);
  }
}

json with_steps(const char* part, const char* list, const json& step, int count) {
  json file = read_json_object(kFolder + "llama.json");
  file[part] = {{"type", "Sequence"}, {list, json::array()}};
  for (int i = 0; i < count; ++i) file[part][list].push_back(step);
  return file;
}

// What a file of some kilobytes would make of memory and time.
TEST(TokenizerJson, StepsThatGrowWithoutEndAreRefusedBeforeTheyDo) {
  const json doubles = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const json by_pattern = {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", "aa"}};
  const json prepends = {{"type", "Prepend"}, {"prepend", std::string(100'000, 'b')}};
  const json files[] = {with_steps("normalizer", "normalizers", doubles, 60), with_steps("normalizer", "normalizers", by_pattern, 60),
                        with_steps("normalizer", "normalizers", prepends, 90), with_steps("normalizer", "normalizers", prepends, 20'000),
                        with_steps("decoder", "decoders", doubles, 60),
                        with_steps("pre_tokenizer", "pretokenizers", {{"type", "Digits"}}, 100'000)};
  for (const json& file : files)
    EXPECT_EQ(test::within_memory(int64_t{1} << 30, 60, [&] {
                Tokenizer(tokenizer_json_spec(file, {}, "x"), "x").encode("a banana 12", Special::kPlain);
              }), "refused") << file.dump().substr(0, 300);
}

TEST(TokenizerJson, RepetitionsOfRepetitionsAreRefusedInTime) {
  std::string classes, nothing = "a";
  for (int i = 0; i < 1'000'000; ++i) classes += "\\w";
  for (int i = 0; i < 8; ++i) nothing = "(" + nothing + "|(){1000}){1000}";
  for (const std::string& pattern : {std::string("((((()){1000}){1000}){1000}){1000}a"), std::string("((a?b?c?){1000}d?){4}"),
                                     std::string("((((a|b)?){900}){1,3}c?){1,6}"), nothing, classes, std::string(3'000'000, 'a')}) {
    for (const char* kind : {"Regex", "String"}) {
      json file = read_json_object(kFolder + "llama.json");
      file["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{kind, pattern}}}, {"behavior", "Isolated"}};
      if (kind == std::string("String") && pattern.size() < 1000) continue;  // that is a plain text
      EXPECT_EQ(test::within_memory(int64_t{1} << 30, 60, [&] { Tokenizer(tokenizer_json_spec(file, {}, "x"), "x"); }),
                "refused") << kind << " " << pattern.substr(0, 60);
    }
  }
}

// The error names the file, the path in it and what would be right.
TEST(TokenizerJson, RefusesWhatItDoesNotKnowByItsPath) {
  const json good = read_json_object(kFolder + "llama.json");
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"/normalizer/normalizers/1/type", R"("Lowercase")", "x: normalizer.normalizers[1].type: \"Lowercase\" is not supported"},
      {"/normalizer/normalizers/1/pattern", R"({"Glob": "*"})", "x: normalizer.normalizers[1].pattern: "},
      {"/normalizer/normalizers/1/pattern", R"({"Regex": "(?<=a)b"})", "x: normalizer.normalizers[1].pattern: the pattern `(?<=a)b` has"},
      {"/normalizer/normalizers/1/pattern", R"({"Regex": "a*"})", "matches the empty text"},
      {"/normalizer/normalizers/1/pattern", R"({"Regex": "[a&&b]"})", "a class within a class"},
      {"/normalizer/normalizers/1/pattern", R"({"Regex": "a++"})", "possessive"},
      {"/normalizer/normalizers/1/pattern", R"({"Regex": "a{3}?"})", "a `?` behind an exact count"},
      {"/normalizer/normalizers/1/pattern", R"({"Regex": "\\p{Han}"})", "Han"},
      {"/normalizer/normalizers/1/pattern", R"x({"Regex": "(((a{1000}){1000}){1000})"})x", "too large"},
      {"/pre_tokenizer", R"({"type": "BertPreTokenizer"})", "x: pre_tokenizer.type: "},
      {"/pre_tokenizer", R"({"type": "Split", "pattern": {"String": " "}, "behavior": "Kept"})", "x: pre_tokenizer.behavior: "},
      {"/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]})",
       "x: pre_tokenizer.pretokenizers[1]: "},
      {"/pre_tokenizer", R"([])", "x: pre_tokenizer: is an array"},
      {"/decoder", R"({"type": "CTC"})", "x: decoder.type: "},
      {"/decoder", R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]})", "x: decoder.decoders[1].type: "},
      {"/post_processor", R"({"type": "BertProcessing"})", "x: post_processor.type: "},
      {"/post_processor/special_tokens/<s>/ids/0", R"("one")", "x: post_processor.special_tokens.<s>.ids[0]: "},
      {"/model/type", R"("WordPiece")", "x: model.type: "},
      {"/model/dropout", "0.1", "x: model.dropout: "},
      {"/model/end_of_word_suffix", R"("</w>")", "x: model.end_of_word_suffix: "},
      {"/model/byte_fallback", "1", "x: model.byte_fallback: is 1 (expected true or false)"},
      {"/model/vocab/<unk>", "-1", "x: model.vocab: token `<unk>`: is -1"},
      {"/model/vocab/<unk>", "5", "id 5 belongs to two tokens"},
      {"/model/merges/0", R"("abc")", "x: model.merges[0]: `abc` is not a merge"},
      {"/model/merges/0", R"(["a"])", "x: model.merges[0]: "},
      {"/added_tokens/0/id", "3", "x: added_tokens[0].id: "},
      {"/added_tokens/0/special", "3", "x: added_tokens[0].special: "},
  };
  for (const auto& [at, value, expected] : cases) {
    json bad = good;
    bad[json::json_pointer(at)] = json::parse(value);
    try {
      Tokenizer(tokenizer_json_spec(bad, {}, "x"), "x");
      ADD_FAILURE() << at << " " << value;
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find(expected), std::string::npos) << e.what() << "\nlacks " << expected;
    }
  }
}

}  // namespace
}  // namespace tandem::text
