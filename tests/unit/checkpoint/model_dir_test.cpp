// SPDX-License-Identifier: Apache-2.0
#include "tandem/checkpoint/model_dir.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "../../temporary_folder.h"
#include "../../tensor_file.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/checkpoint/model_export.h"

namespace tandem::checkpoint {
namespace {

using test::TemporaryFolder;

at::Tensor read_box(const ModelDir& model, const TensorSpec& spec, c10::ScalarType dtype) {
  at::Tensor to = at::full(spec.box.shape(), -1, dtype);
  model.read(spec, to);
  return to;
}

TEST(ModelDir, WhatIsWrittenIsRead) {
  const TemporaryFolder folder("model");
  std::ofstream(folder / "tokenizer.json") << "{}";
  write_model_dir(folder / "hf", {{"model_type", "qwen2"}}, {{"a.weight", at::ones({2, 3})}}, {.files = tokenizer_files(folder.path())});
  const ModelDir model(folder / "hf");
  EXPECT_EQ(read_json_object(folder / "hf/config.json")["model_type"], "qwen2");
  EXPECT_TRUE(std::filesystem::exists(folder / "hf/tokenizer.json"));
  EXPECT_EQ(model.tensor("a.weight").numel(), 6);
  EXPECT_THROW(read_box(model, {"a.weight", {3, 2}, Box::whole({3, 2})}, at::kFloat), UserError);
  EXPECT_THROW(model.tensor("a.wieght"), UserError);
  EXPECT_NO_THROW(model.require_exactly({"a.weight"}));
  EXPECT_THROW(model.require_exactly({}), UserError);
  EXPECT_THROW(model.require_exactly({"a.weight", "b.weight"}), UserError);
  EXPECT_NO_THROW(model.require_exactly({}, [](const std::string& name) { return name == "a.weight"; }));
}

TEST(ModelDir, ReadsABoxOfAnyFloatDtype) {
  const TemporaryFolder folder("boxes");
  const at::Tensor whole = at::arange(48, at::kFloat).view({8, 6}) / 4;
  const Box box{{2, 1}, {5, 4}};
  for (c10::ScalarType stored : {at::kFloat, at::kBFloat16, at::kHalf})
    for (c10::ScalarType wanted : {at::kFloat, at::kBFloat16}) {
      write_model_dir(folder / "hf", {{"model_type", "qwen2"}}, {{"a", whole.to(stored)}});
      const at::Tensor got = read_box(ModelDir(folder / "hf"), {"a", {8, 6}, box}, wanted);
      EXPECT_TRUE(at::equal(got, whole.narrow(0, 2, 3).narrow(1, 1, 3).to(wanted))) << stored << " to " << wanted;
    }
  EXPECT_THROW(read_box(ModelDir(folder / "hf"), {"a", {8, 7}, box}, at::kFloat), UserError);
  write_model_dir(folder / "hf", {{"model_type", "qwen2"}}, {{"a", whole.to(at::kInt)}});
  EXPECT_THROW(read_box(ModelDir(folder / "hf"), {"a", {8, 6}, box}, at::kFloat), UserError);
}

TEST(ModelDir, ReadsEachByteOnceAndOfABoxItsOwnAlone) {
  const TemporaryFolder folder("bytes");
  write_model_dir(folder / "hf", {{"model_type", "qwen2"}}, {{"a", at::zeros({64, 96}, at::kBFloat16)}, {"b", at::zeros({5})}});
  const ModelDir model(folder / "hf");
  EXPECT_EQ(model.file_bytes(), static_cast<int64_t>(std::filesystem::file_size(folder / "hf/model.safetensors")));
  read_box(model, {"b", {5}, Box::whole({5})}, at::kFloat);
  read_box(model, {"a", {64, 96}, Box::whole({64, 96})}, at::kFloat);
  EXPECT_EQ(model.bytes_read(), 5 * 4 + 64 * 96 * 2);
  read_box(model, {"a", {64, 96}, Box{{8, 32}, {24, 80}}}, at::kBFloat16);
  EXPECT_EQ(model.bytes_read(), 5 * 4 + 64 * 96 * 2 + 16 * 48 * 2);
}

TEST(ModelDir, MultipliesBlockScaledFloat8Out) {
  const TemporaryFolder folder("float8");
  const int64_t N = 10, K = 7, block = 4;
  const at::Tensor stored = (at::arange(N * K, at::kFloat).view({N, K}) / 8 - 3).to(at::kFloat8_e4m3fn);
  const at::Tensor scales = at::arange(1, 7, at::kFloat).view({3, 2}) / 16;
  at::Tensor want = stored.to(at::kFloat);
  for (int64_t r = 0; r < N; ++r)
    for (int64_t c = 0; c < K; ++c) want.select(0, r).select(0, c).mul_(scales.select(0, r / block).select(0, c / block));
  const nlohmann::json config = {{"quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {block, block}}}}};
  write_model_dir(folder / "hf", config, {{"w", stored}, {"w_scale_inv", scales}});
  const ModelDir model(folder / "hf");
  EXPECT_NO_THROW(model.require_exactly({"w"}));
  for (const Box& box : {Box{{0, 0}, {N, K}}, Box{{3, 2}, {9, 5}}, Box{{5, 6}, {6, 7}}}) {
    const at::Tensor part = want.narrow(0, box.begin[0], box.extent(0)).narrow(1, box.begin[1], box.extent(1));
    EXPECT_TRUE(at::equal(read_box(model, {"w", {N, K}, box}, at::kFloat), part));
  }
  write_model_dir(folder / "hf", config, {{"w", stored}});
  EXPECT_THROW(read_box(ModelDir(folder / "hf"), {"w", {N, K}, Box::whole({N, K})}, at::kFloat), UserError);
  write_model_dir(folder / "hf", config, {{"w", stored}, {"w_scale_inv", at::ones({2, 2})}});
  EXPECT_THROW(read_box(ModelDir(folder / "hf"), {"w", {N, K}, Box::whole({N, K})}, at::kFloat), UserError);
  for (const nlohmann::json& wrong : {nlohmann::json("fp8"), nlohmann::json(nullptr), nlohmann::json{{"weight_block_size", "128"}}}) {
    write_model_dir(folder / "hf", {{"quantization_config", wrong}}, {{"w", stored}, {"w_scale_inv", scales}});
    EXPECT_THROW(read_box(ModelDir(folder / "hf"), {"w", {N, K}, Box::whole({N, K})}, at::kFloat), UserError) << wrong;
  }
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
