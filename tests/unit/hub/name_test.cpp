// SPDX-License-Identifier: Apache-2.0
#include "tandem/hub/name.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tandem/base/error.h"
#include "tandem/hub/recipe.h"
#include "tests/temporary_folder.h"

namespace tandem::hub {
namespace {

const std::string kCommit(40, 'a'), kOther(40, 'b');

std::string read(const std::string& text, Kind kind) {
  const std::optional<Name> name = name_in(text, kind, "model.path");
  return name ? to_text(*name) : "path";
}

TEST(HubName, WhatTextsMean) {
  EXPECT_EQ(read("Qwen/Qwen2.5-0.5B", Kind::kModel), "hf:Qwen/Qwen2.5-0.5B");
  EXPECT_EQ(read("Qwen/Qwen2.5-0.5B@v1", Kind::kModel), "hf:Qwen/Qwen2.5-0.5B@v1");
  EXPECT_EQ(read("modelscope:Qwen/X@dev", Kind::kModel), "modelscope:Qwen/X@dev");
  EXPECT_EQ(read("openai/gsm8k/main", Kind::kTrainData), "hf:openai/gsm8k/main");
  EXPECT_EQ(read("hf:openai/gsm8k/main/train.parquet", Kind::kTrainData), "hf:openai/gsm8k/main/train.parquet");
  for (const char* path : {"", "synthetic", "model", "/a/b", "./a/b", "../a/b", "a/b/c", "~/a", "a/b@", "a b/c", "a//b", "a/.b"})
    EXPECT_EQ(read(path, Kind::kModel), "path") << path;
  for (const char* path : {"gsm8k/train.jsonl", "data/gsm8k/test.json", "x/y.parquet", "rows.jsonl"})
    EXPECT_EQ(read(path, Kind::kTrainData), "path") << path;
}

TEST(HubName, APrefixWantsARepository) {
  for (const char* text : {"hf:Qwen", "hf:", "modelscope:a/b/c", "hf:a/b@"}) EXPECT_THROW(read(text, Kind::kModel), UserError) << text;
  EXPECT_THROW(read("hf:rows.jsonl", Kind::kHeldOutData), UserError);
}

TEST(HubName, WhatIsHereIsAPath) {
  const test::TemporaryFolder folder("hub_name");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  std::filesystem::create_directories("owner");
  EXPECT_EQ(read("owner/typo", Kind::kModel), "path");
  EXPECT_EQ(read("other/typo", Kind::kModel), "hf:other/typo");
  std::filesystem::create_directories("hf:a");
  std::filesystem::create_directories("hf:a/b");
  EXPECT_EQ(read("hf:a/b", Kind::kModel), "path");
  const std::string pinned = folder / ("hub/models--a--b/snapshots/" + kCommit);
  EXPECT_EQ(read(pinned, Kind::kModel), "hf:a/b@" + kCommit) << "gone: fetched again";
  std::filesystem::create_directories(pinned);
  EXPECT_EQ(read(pinned, Kind::kModel), "path");
  std::filesystem::current_path(before);
}

TEST(HubName, AFetchedPathSaysItsNameAndCommit) {
  EXPECT_EQ(to_text(*name_of_fetched("/c/hub/models--Qwen--X-1/snapshots/" + kCommit)), "hf:Qwen/X-1@" + kCommit);
  EXPECT_EQ(to_text(*name_of_fetched("c/datasets--a--b/snapshots/" + kCommit + "/main/t.jsonl")), "hf:a/b/main/t.jsonl@" + kCommit);
  EXPECT_EQ(to_text(*name_of_fetched("c/pinned/models--a--b/snapshots/" + kCommit)), "modelscope:a/b@" + kCommit);
  for (const std::string& path : {std::string("models--a--b/snapshots/main"), "models--a/snapshots/" + kCommit, "a/snapshots/" + kCommit})
    EXPECT_FALSE(name_of_fetched(path)) << path;
}

TEST(HubName, WhatStandsForAName) {
  const Name fetched = *name_of_fetched("c/datasets--a--b/snapshots/" + kCommit + "/main/t.jsonl");
  const auto asked = [](const std::string& text) { return *name_in(text, Kind::kTrainData, ""); };
  for (const std::string& text : {std::string("a/b"), std::string("a/b/main"), std::string("a/b@main"), "a/b@" + kCommit,
                                  std::string("hf:a/b/main/t.jsonl")})
    EXPECT_TRUE(stands_for(fetched, asked(text))) << text;
  for (const std::string& text : {std::string("a/c"), std::string("a/b/mai"), "a/b@" + kOther, std::string("modelscope:a/b")})
    EXPECT_FALSE(stands_for(fetched, asked(text))) << text;
}

TEST(HubRecipe, EveryPlaceOfARecipeIsReadAndWritten) {
  config::RunConfig c;
  c.model.path = "a/m";
  c.critic.path = "a/c";
  c.reward.model = "a/r";
  c.model.ref_model_load_path = "a/ref";
  c.data.mix = {"a/x/main=2", "dir=1/y.jsonl=0.5"};
  c.data.eval = {"s=a/e", "t=/d/k=v.jsonl"};
  std::vector<std::string> texts;
  for (const Place& place : places_of(c)) texts.push_back(place.option + " " + place.text);
  EXPECT_EQ(texts, (std::vector<std::string>{"model.path a/m", "model.ref_model_load_path a/ref", "critic.path a/c", "reward.model a/r",
                                             "data.mix a/x/main", "data.mix dir=1/y.jsonl", "data.eval a/e", "data.eval /d/k=v.jsonl"}));
  const config::RunConfig changed = with_texts(c, {"1", "2", "3", "4", "5", "6", "7", "8"});
  EXPECT_EQ(changed.data.mix, (std::vector<std::string>{"5=2", "6=0.5"}));
  EXPECT_EQ(changed.data.eval, (std::vector<std::string>{"s=7", "t=8"}));
  EXPECT_EQ(changed.model.path + changed.model.ref_model_load_path + changed.critic.path + changed.reward.model, "1234");
  c.data.mix.clear();
  c.data.eval = {"a/e"};
  EXPECT_EQ(with_texts(c, {"1", "2", "3", "4", "T", "E"}).data.train, "T");
  EXPECT_EQ(with_texts(c, {"1", "2", "3", "4", "T", "E"}).data.eval, std::vector<std::string>{"E"});
}

TEST(HubRecipe, AResumeTakesWhatWasFetched) {
  const test::TemporaryFolder folder("hub_recipe");
  const std::string pinned = folder / ("models--a--m/snapshots/" + kCommit);
  std::filesystem::create_directories(pinned);
  config::RunConfig c;
  c.model.path = "a/m";
  EXPECT_EQ(local_paths(c, {{"model.path", Kind::kModel, pinned}}, {}).front(), pinned);
}

}  // namespace
}  // namespace tandem::hub
