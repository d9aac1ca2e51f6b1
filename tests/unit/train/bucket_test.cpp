// SPDX-License-Identifier: Apache-2.0
#include "tandem/train/bucket.h"

#include <gtest/gtest.h>

#include "../../tiny_model.h"

namespace tandem::train {
namespace {

std::vector<int64_t> sizes_of(const model::ParameterTable& table) {
  std::vector<int64_t> sizes;
  for (const model::LayerRanges& l : table.layers) sizes.push_back(l.dense.size() + l.experts.size());
  return sizes;
}

model::ModelConfig config_of(const std::string& family) {
  model::ModelConfig config = family == "qwen2" ? test::tiny_config() : test::experts_config(family);
  config.num_layers = 5;
  return config;
}

TEST(Bucket, EveryLayerIsInOneAndTheHighestComesFirst) {
  for (const char* family : {"qwen2", "deepseek_v3"})
    for (const model::Layout& layout : {model::Layout{}, {.dp = 2, .tp = 2, .ep = 2}, {.dp = 4, .pp = 2}}) {
      if (layout.ep > 1 && family == std::string("qwen2")) continue;
      const model::ParameterTable table = model::parameter_table(config_of(family), layout, 0);
      for (int64_t most : {1, 15'000, 1'000'000'000}) {
        const std::vector<Bucket> buckets = buckets_of(table, sizes_of(table), most);
        ASSERT_GE(buckets.size(), 2u);
        EXPECT_EQ(buckets.back().last_layer, -1) << "the embedding alone, at the end";
        EXPECT_EQ(buckets.front().last_layer, table.layers.back().layer);
        int64_t layers = 0, elements = 0, next = table.layers.back().layer;
        for (const Bucket& b : buckets) {
          EXPECT_EQ(b.last_layer, next);
          EXPECT_TRUE(b.num_layers == 1 || b.dense.size() + b.experts.size() <= most);
          EXPECT_EQ(b.dense.size() % (16 * layout.data_ranks()), 0);
          EXPECT_EQ(b.experts.size() % (16 * layout.expert_data_ranks()), 0);
          layers += b.num_layers;
          elements += b.dense.size() + b.experts.size();
          next = b.first_layer - 1;
        }
        EXPECT_EQ(layers, std::ssize(table.layers));
        EXPECT_EQ(elements, table.num_elements);
        EXPECT_TRUE(most > 1 || std::ssize(buckets) == layers);
        EXPECT_TRUE(most < 1'000'000 || buckets.size() == 2);
      }
    }
}

TEST(Bucket, SlicesOfAllRanksCoverEachElementOnce) {
  const model::Layout layout{.dp = 4, .ep = 2};
  const model::ParameterTable table = model::parameter_table(config_of("qwen3_moe"), layout, 0);
  const std::vector<Bucket> buckets = buckets_of(table, sizes_of(table), 20'000);
  std::vector<int> owners(static_cast<size_t>(table.num_elements));
  for (int r = 0; r < 4; ++r) {
    int64_t at = 0;
    for (const Slice& s : slices_of(buckets, {r, 4}, {r / 2, 2})) {
      EXPECT_EQ(s.at, at) << "one after the other in the state";
      at += s.size;
      for (int64_t i = s.begin; i < s.begin + s.size; ++i) ++owners[static_cast<size_t>(i)];
    }
  }
  const int64_t dense = table.layers.back().dense.end;
  for (int64_t i = 0; i < table.num_elements; ++i)
    EXPECT_EQ(owners[static_cast<size_t>(i)], i < dense ? 1 : 2) << i;  // two sets of experts
}

}  // namespace
}  // namespace tandem::train
