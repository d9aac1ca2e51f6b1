// SPDX-License-Identifier: Apache-2.0
#include "tandem/checkpoint/model_dir.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tandem/base/error.h"
#include "temporary_folder.h"

namespace tandem::checkpoint {
namespace {

TEST(ModelDir, WhatIsWrittenIsRead) {
  const TemporaryFolder folder("model");
  std::ofstream(folder / "tokenizer.json") << "{}";
  write_model_dir(folder / "hf", {{"model_type", "qwen2"}}, {{"a.weight", at::ones({2, 3})}}, folder.path());
  const ModelDir model(folder / "hf");
  EXPECT_EQ(model.config()["model_type"], "qwen2");
  EXPECT_TRUE(std::filesystem::exists(folder / "hf/tokenizer.json"));
  EXPECT_EQ(model.tensor("a.weight", {2, 3}).numel(), 6);
  EXPECT_THROW(model.tensor("a.weight", {3, 2}), UserError);
  EXPECT_THROW(model.tensor("a.wieght"), UserError);
  EXPECT_NO_THROW(model.require_exactly({"a.weight"}));
  EXPECT_THROW(model.require_exactly({}), UserError);
  EXPECT_THROW(model.require_exactly({"a.weight", "b.weight"}), UserError);
  EXPECT_NO_THROW(model.require_exactly({}, {"a.weight"}));
}

TEST(ModelDir, ReadsShardsByTheirIndex) {
  const TemporaryFolder folder("shards");
  std::ofstream(folder / "config.json") << "{}";
  write_safetensors(folder / "model-1.safetensors", {{"a", at::ones({1})}});
  write_safetensors(folder / "model-2.safetensors", {{"b", at::zeros({2})}});
  std::ofstream(folder / "model.safetensors.index.json") << R"({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})";
  const ModelDir model(folder.path());
  EXPECT_EQ(model.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(model.tensor("b").numel(), 2);
  for (const char* wrong : {R"({"weight_map": {"c": "model-1.safetensors"}})", R"({"weight_map": {"a": "absent.safetensors"}})",
                            R"({"weight_map": {"a": "../x"}})", "{}", "["}) {
    std::ofstream(folder / "model.safetensors.index.json") << wrong;
    EXPECT_THROW(ModelDir{folder.path()}, UserError) << wrong;
  }
}

TEST(ModelDir, SaysWhatIsMissing) {
  const TemporaryFolder folder("nothing");
  EXPECT_THROW(ModelDir(folder / "absent"), UserError);
  EXPECT_THROW(ModelDir{folder.path()}, UserError);
  std::ofstream(folder / "config.json") << "{}";
  EXPECT_THROW(ModelDir{folder.path()}, UserError);
}

}  // namespace
}  // namespace tandem::checkpoint
