// SPDX-License-Identifier: Apache-2.0
#include "tandem/checkpoint/model_export.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../../small_files.h"
#include "../../temporary_folder.h"
#include "tandem/base/error.h"
#include "tandem/checkpoint/model_dir.h"

namespace tandem::checkpoint {
namespace {

using test::TemporaryFolder;
namespace fs = std::filesystem;
using nlohmann::json;

const json kConfig = {{"model_type", "qwen2"}};

std::map<std::string, at::Tensor> some_model() {
  std::map<std::string, at::Tensor> tensors = {{"model.embed_tokens.weight", at::arange(40, at::kFloat).view({10, 4})},
                                               {"model.norm.weight", at::ones({4})}};
  for (int layer : {0, 1, 2, 10}) {
    const std::string l = "model.layers." + std::to_string(layer) + ".";
    tensors[l + "input_layernorm.weight"] = at::full({4}, layer, at::kFloat);
    tensors[l + "self_attn.q_proj.weight"] = at::full({4, 4}, layer + 0.5, at::kFloat);
    tensors[l + "mlp.down_proj.weight"] = at::full({4, 4}, layer + 0.25, at::kFloat);
  }
  return tensors;
}

std::vector<std::string> files_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

void expect_holds(const std::string& directory, const std::map<std::string, at::Tensor>& tensors) {
  const ModelDir model(directory);
  EXPECT_EQ(model.names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(at::equal(model.tensor(name), tensor)) << name;
}

// By hand from the rule of huggingface_hub's split: in order, a tensor above the bound at once in a file of its own, the others
// together until the next does not fit. transformers_run_test compares with transformers itself.
TEST(ModelExport, CutsWhereTransformersCuts) {
  const auto tensor = [](const char* name, int64_t elements) { return TensorInfo{name, at::kBFloat16, {elements}}; };
  const std::vector<TensorInfo> tensors = {tensor("model.embed_tokens.weight", 10),
                                           tensor("model.layers.0.input_layernorm.weight", 10),
                                           tensor("model.layers.0.self_attn.q_proj.weight", 20),
                                           tensor("model.layers.0.mlp.down_proj.weight", 60),
                                           tensor("model.layers.10.mlp.down_proj.weight", 20),
                                           tensor("model.layers.2.mlp.down_proj.weight", 20),
                                           tensor("model.norm.weight", 10),
                                           tensor("lm_head.weight", 20)};
  std::vector<std::vector<std::string>> cut;
  for (const Shard& shard : plan_shards(tensors, 100)) {
    EXPECT_EQ(shard.file, "model-0000" + std::to_string(cut.size() + 1) + "-of-00004.safetensors");
    cut.emplace_back();
    for (const TensorInfo& t : shard.tensors) cut.back().push_back(t.name);
  }
  const std::vector<std::vector<std::string>> wanted = {
      {"model.layers.0.mlp.down_proj.weight"},
      {"lm_head.weight", "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight"},
      {"model.layers.0.self_attn.q_proj.weight", "model.layers.2.mlp.down_proj.weight"},
      {"model.layers.10.mlp.down_proj.weight", "model.norm.weight"}};
  EXPECT_EQ(cut, wanted);
  EXPECT_EQ(plan_shards(tensors, 340).size(), 1u);
  EXPECT_EQ(plan_shards(tensors, 340)[0].file, "model.safetensors");
  EXPECT_EQ(plan_shards(tensors, 339).size(), 2u);
}

TEST(ModelExport, ShardsAndTheirIndexAreTheModel) {
  const TemporaryFolder folder("shards");
  const auto tensors = some_model();
  write_model_dir(folder / "hf", kConfig, tensors, {.max_shard_bytes = 200});
  expect_holds(folder / "hf", tensors);
  const json index = json::parse(std::ifstream(folder / "hf/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 160 + 16 + 4 * (16 + 64 + 64));
  EXPECT_EQ(index["weight_map"].size(), tensors.size());
  EXPECT_EQ(index["weight_map"]["model.embed_tokens.weight"], "model-00001-of-00005.safetensors");
  EXPECT_EQ(files_in(folder / "hf").size(), 7u);
}

TEST(ModelExport, AsksForOneTensorAtATime) {
  const TemporaryFolder folder("stream");
  const auto tensors = some_model();
  ModelSource source;
  for (const auto& [name, t] : tensors) source.tensors.push_back({name, t.scalar_type(), t.sizes().vec()});
  std::vector<std::string> asked, planned;
  for (const Shard& shard : plan_shards(source.tensors, 300))
    for (const TensorInfo& t : shard.tensors) planned.push_back(t.name);
  c10::weak_intrusive_ptr<c10::TensorImpl> last{c10::intrusive_ptr<c10::TensorImpl>()};
  source.values = [&](const std::string& name) {
    EXPECT_TRUE(last.expired()) << "at " << name;
    asked.push_back(name);
    at::Tensor copy = tensors.at(name).clone();
    last = c10::weak_intrusive_ptr<c10::TensorImpl>(copy.getIntrusivePtr());
    return copy;
  };
  write_model_dir(folder / "hf", kConfig, source, {.max_shard_bytes = 300});
  EXPECT_EQ(asked, planned);
  expect_holds(folder / "hf", tensors);
}

TEST(ModelExport, NothingOfAnEarlierModelIsLeft) {
  const TemporaryFolder folder("again");
  auto tensors = some_model();
  const std::pair<int64_t, int> files_by_bound[] = {{200, 5}, {1000000, 1}, {300, 3}, {200, 5}};
  for (const auto& [bound, num_weight_files] : files_by_bound) {
    tensors["model.norm.weight"] = at::full({4}, bound, at::kFloat);
    write_model_dir(folder / "hf", kConfig, tensors, {.max_shard_bytes = bound});
    expect_holds(folder / "hf", tensors);
    const std::vector<std::string> files = files_in(folder / "hf");
    const bool single = num_weight_files == 1;
    EXPECT_EQ(std::count(files.begin(), files.end(), "model.safetensors"), single) << bound;
    EXPECT_EQ(std::count(files.begin(), files.end(), "model.safetensors.index.json"), !single) << bound;
    EXPECT_EQ(std::ssize(files), num_weight_files + (single ? 1 : 2)) << bound;  // with config.json
  }
}

TEST(ModelExport, AFullDiskLeavesTheEarlierModel) {
  const TemporaryFolder folder("full");
  const auto tensors = some_model();
  write_model_dir(folder / "hf", kConfig, tensors, {.max_shard_bytes = 200});
  auto larger = tensors;
  larger["model.norm.weight"] = at::ones({100000});
  {
    const test::SmallFiles limit(4096);
    EXPECT_THROW(write_model_dir(folder / "hf", kConfig, larger, {.max_shard_bytes = 200}), PeerError);
  }
  expect_holds(folder / "hf", tensors);
  for (const std::string& name : files_in(folder / "hf")) EXPECT_FALSE(name.ends_with(".tmp")) << name;
}

}  // namespace
}  // namespace tandem::checkpoint
