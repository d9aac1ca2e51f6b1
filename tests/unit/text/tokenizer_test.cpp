// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/tokenizer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tandem/base/error.h"
#include "tandem/base/rng.h"
#include "tandem/base/json_file.h"
#include "tandem/text/tokenizer_files.h"

namespace tandem::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string fresh_folder(const std::string& name) {
  const fs::path folder = fs::temp_directory_path() / ("tandem_text_" + name + std::to_string(::getpid()));
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder.string();
}

TokenizerSpec mini_spec() {
  const json mini = read_json_object(std::string(TANDEM_SOURCE_DIR) + "/tests/oracles/tokenizer/qwen2_mini.json");
  json added = json::object();
  for (const auto& [content, id] : mini["added_tokens"].items())
    added[std::to_string(id.get<int>())] = {{"content", content}, {"special", true}};
  return qwen2_spec(mini["vocab"], mini["merges"], {{{"added_tokens_decoder", added}, {"eos_token", "<|endoftext|>"}}}, "mini");
}

// Many of these overlap.
const std::vector<std::pair<std::string, std::string>> kMerges = {{"a", "b"},   {"b", "c"}, {"a", "a"},   {"ab", "c"},
                                                                  {"aa", "ab"}, {"c", "c"}, {"bc", "cc"}, {"aa", "aa"}};

Bpe overlapping_bpe() {
  Bpe::Spec spec;
  spec.where = "test";
  int32_t id = 0;
  for (char c : std::string("abc")) spec.vocab[std::string(1, c)] = id++;
  for (const auto& [left, right] : kMerges) {
    spec.merges.push_back({left, right});
    spec.vocab.emplace(left + right, id++);
  }
  return Bpe(std::move(spec));
}

// By the definition: the first merge of the list that is anywhere, at its leftmost place, until there is none.
std::vector<std::string> merged_by_definition(const std::string& piece) {
  std::vector<std::string> tokens;
  for (char c : piece) tokens.emplace_back(1, c);
  const auto apply = [&](const auto& merge) {
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      if (tokens[i] != merge.first || tokens[i + 1] != merge.second) continue;
      tokens[i] += tokens[i + 1];
      tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      return true;
    }
    return false;
  };
  while (std::ranges::any_of(kMerges, apply)) continue;
  return tokens;
}

TEST(Bpe, ShortAndLongPiecesMergeAlike) {
  const Bpe bpe = overlapping_bpe();
  RandomStream random(11, 0);
  for (int trial = 0; trial < 3000; ++trial) {
    std::string piece;
    for (int64_t i = 1 + random.below(120); i > 0; --i) piece += "abc"[random.below(3)];
    std::vector<int32_t> ids, expected;
    bpe.encode(piece, ids);
    for (const std::string& token : merged_by_definition(piece)) bpe.encode(token, expected);
    ASSERT_EQ(ids, expected) << piece;
  }
}

TEST(Bpe, AByteOutsideTheAlphabetIsNamed) {
  std::vector<int32_t> ids;
  EXPECT_THROW(overlapping_bpe().encode("abx", ids), UserError);
}

TEST(Tokenizer, RecognisesSpecialTokensUnlessPlain) {
  const Tokenizer tokenizer(mini_spec(), "mini");
  EXPECT_EQ(tokenizer.encode("<|endoftext|>").size(), 1u);
  EXPECT_GT(tokenizer.encode("<|endoftext|>", Special::kPlain).size(), 1u);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("<|endoftext|>", Special::kPlain)), "<|endoftext|>");
  EXPECT_EQ(tokenizer.eos_id(), 270);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a<|im_start|>b"), true), "ab");
}

TEST(Tokenizer, AnIdOutOfRangeIsNamed) {
  const Tokenizer tokenizer(mini_spec(), "mini");
  const std::vector<int32_t> ids = {1, 99999}, negative = {-1};
  EXPECT_THROW(tokenizer.decode(ids), UserError);
  EXPECT_THROW(tokenizer.decode(negative), UserError);
}

TEST(Tokenizer, BytesSurviveTheRoundTripOnceRepaired) {
  const Tokenizer tokenizer(mini_spec(), "mini");
  RandomStream random(5, 0);
  for (int trial = 0; trial < 500; ++trial) {
    std::string text;
    for (int64_t i = random.below(30); i > 0; --i) text += static_cast<char>(32 + random.below(95));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a\xFFz")), "a\xEF\xBF\xBDz");
}

TEST(Tokenizer, IsNotQuadraticInOneLongPiece) {
  const Tokenizer tokenizer(mini_spec(), "mini");
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string& text :
       {std::string(1000000, 'l'), std::string(1000000, ' '), std::string(1000000, '<'), std::string(1000000, '\n')})
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)).size(), text.size());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(Tokenizer, EncodesAlikeInManyThreads) {
  const Tokenizer tokenizer(mini_spec(), "mini");
  const std::string text = "lower newer 010;}\n ### lower lower";
  const auto expected = tokenizer.encode(text);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) wrong += tokenizer.encode(text) != expected;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(AddedTokens, TheLongestOfThoseThatStartTogetherWins) {
  const AddedTokenFinder finder({{1, "<a>"}, {2, "<a><b>"}, {3, "<"}, {4, "<ab"}});
  const auto pieces = finder.split("x<a><b><a><<ab", false);
  std::vector<int32_t> ids;
  for (const AddedPiece& piece : pieces) ids.push_back(piece.id);
  EXPECT_EQ(ids, (std::vector<int32_t>{-1, 2, 1, 3, 4}));
}

TEST(CharTokenizer, IsReadBackFromItsFiles) {
  const std::string folder = fresh_folder("char");
  write_char_tokenizer(folder, "0123456789+= ", {"<pad>", "<eos>"});
  const Tokenizer tokenizer = Tokenizer::load(folder);
  EXPECT_EQ(tokenizer.vocab_size(), 15);
  EXPECT_EQ(tokenizer.encode("12+3=<eos>"), (std::vector<int32_t>{3, 4, 12, 5, 13, 1}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("12 + 3 =")), "12 + 3 =");
  EXPECT_EQ(tokenizer.eos_id(), 1);
  EXPECT_THROW(tokenizer.encode("a"), UserError);
  EXPECT_THROW(write_char_tokenizer(folder, "11", {}), UserError);
  fs::remove_all(folder);
}

TEST(Tokenizer, SaysWhichFileIsMissingOrMalformed) {
  const std::string folder = fresh_folder("bad");
  EXPECT_THROW(Tokenizer::load(folder + "/absent"), UserError);
  EXPECT_THROW(Tokenizer::load(folder), UserError);
  std::ofstream(folder + "/vocab.json") << R"({"a": 0, "b": 1, "ab": 2})";
  try {
    Tokenizer::load(folder);
    FAIL();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("merges.txt"), std::string::npos) << e.what();
  }
  std::ofstream(folder + "/merges.txt") << "#version: 0.2\na b\na c\n";
  EXPECT_THROW(Tokenizer::load(folder), UserError);  // the token c does not exist
  const std::pair<const char*, const char*> configs[] = {
      {R"({"eos_token": {"content": null}})", "eos_token"},
      {R"({"bos_token": 5})", "bos_token"},
      {R"({"added_tokens_decoder": {"3": {"content": "x", "special": "yes"}}})", "special"}};
  std::ofstream(folder + "/merges.txt") << "#version: 0.2\na b\n";
  for (const auto& [config, key] : configs) {
    std::ofstream(folder + "/tokenizer_config.json") << config;
    try {
      Tokenizer::load(folder);
      FAIL() << config;
    } catch (const UserError& e) {
      EXPECT_TRUE(std::string(e.what()).starts_with(folder + "/tokenizer_config.json: ")) << e.what();
      EXPECT_NE(std::string(e.what()).find(key), std::string::npos) << e.what();
    }
  }
  std::ofstream(folder + "/tokenizer.json") << R"({"model": {"type": "WordPiece"}})";
  EXPECT_THROW(Tokenizer::load(folder), UserError);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace tandem::text
