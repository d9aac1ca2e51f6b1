// SPDX-License-Identifier: Apache-2.0
// What a run tells a worker that joins comes as it was said, and what is cut short or damaged is an error.
#include <gtest/gtest.h>

#include "tandem/base/error.h"
#include "tandem/worker/welcome.h"

namespace tandem::worker {
namespace {

Welcome welcome_with(std::vector<pull::WeightHolder> adapters) {
  return {"model: {}", {{"config.json", "{}"}}, {{"tcp://127.0.0.1:1 key", {}, 0, at::kBFloat16}}, std::move(adapters), 77, {},
          {.group_size = 3, .prompt_tokens = 4, .response_tokens = 5, .vocab_size = 6, .num_experts = 7, .route_width = 8},
          {"bfloat16", "cuda", true, false, true}};
}

TEST(Welcome, SaysWhoHasWeightsAndWhoHasAdapters) {
  const model::Layout layout = model::parse_layout("tp2", "test");
  const std::vector<pull::WeightHolder> adapters = {{"tcp://127.0.0.1:2", layout, 0, at::kFloat},
                                                    {"tcp://127.0.0.1:3", layout, 1, at::kFloat}};
  for (const Welcome& said : {welcome_with({}), welcome_with(adapters)}) {
    const Welcome heard = welcome_of(to_text(said));
    EXPECT_EQ(heard.recipe, said.recipe);
    EXPECT_EQ(heard.files, said.files);
    EXPECT_EQ(heard.holders, said.holders);
    EXPECT_EQ(heard.holders[0].dtype, at::kBFloat16);
    EXPECT_EQ(heard.adapters, said.adapters);
    EXPECT_EQ(heard.max_context_tokens, 77);
    EXPECT_EQ(heard.limits, said.limits);
    EXPECT_EQ(heard.drawing, said.drawing);
    for (const pull::WeightHolder& each : heard.adapters) EXPECT_EQ(each.layout, layout);
  }
}

TEST(Welcome, WhatIsCutShortIsAnError) {
  const std::string text = to_text(welcome_with({{"tcp://127.0.0.1:2", {}, 0, at::kFloat}}));
  for (size_t length = 0; length < text.size(); ++length) EXPECT_THROW((void)welcome_of(text.substr(0, length)), PeerError) << length;
}

TEST(Welcome, WhatIsDamagedIsAnError) {
  const std::string text = to_text(welcome_with({{"tcp://127.0.0.1:2", {}, 0, at::kFloat}}));
  for (size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_THROW((void)welcome_of(damaged), PeerError) << "byte " << at;
  }
}

}  // namespace
}  // namespace tandem::worker
