// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/runner.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <numeric>

#include "../../tiny_model.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kPrompt = 20, kBlockTokens = 16;

// One sequence in blocks 0 and 1, another with other tokens in 2 and 3.
struct OneRunner {
  test::TinyModel model{test::tiny_config(), at::kFloat, true};
  Runner runner;

  explicit OneRunner(bool graphs) : runner(options(graphs), model.decoder, model.arena) {
    runner.take_weights(model.parameters);
    runner.open_cache(64);
  }
  static Options options(bool graphs) {
    Options o;
    o.max_running = 4;
    o.kv_cache_mib = 16;
    o.kv_block_tokens = kBlockTokens;
    o.graphs = graphs;
    return o;
  }
  // The logits of the last token of each sequence.
  at::Tensor run(const Plan& plan) { return runner.run(plan, false).logits_SRV[0].cpu().clone(); }
};

const std::vector<int32_t> kFirst{0, 1}, kSecond{2, 3};

void add(Plan& plan, int64_t sequence, std::vector<int32_t> ids, int64_t position, const std::vector<int32_t>& blocks) {
  plan.runs.push_back({SequenceId{sequence}, std::ssize(plan.ids), std::ssize(ids), position, blocks});
  plan.ids.insert(plan.ids.end(), ids.begin(), ids.end());
  plan.rows.push_back(std::ssize(plan.ids) - 1);
  plan.draws.push_back({SequenceId{sequence}, std::ssize(plan.rows) - 1});
}

std::vector<int32_t> prompt(int32_t first) {
  std::vector<int32_t> ids(kPrompt);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

// What ran ahead in blocks that its sequence has no more was of other keys: it runs again. In its own blocks it does not.
TEST(Runner, WhatRanAheadCountsInTheSameBlocksAlone) {
  if (!DecodeGraphs::serves(OneRunner(true).model.decoder)) GTEST_SKIP() << "a device without graphs: nothing runs ahead";
  for (const bool moved : {false, true}) {
    const auto logits_and_ahead = [&](bool graphs) {
      OneRunner c(graphs);
      Plan prompts, next;
      add(prompts, 0, prompt(2), 0, kFirst);
      add(prompts, 1, prompt(30), 0, kSecond);
      c.run(prompts);
      const at::Tensor tokens = at::full({2}, 7, at::TensorOptions(at::kInt).device(c.model.arena.device()));
      if (c.runner.runs_ahead()) c.runner.run_ahead(prompts, tokens, std::vector<int64_t>{0});
      add(next, 0, {7}, kPrompt, moved ? kSecond : kFirst);
      const at::Tensor logits = c.run(next);
      return std::pair(logits, c.runner.num_ran_ahead());
    };
    const auto [logits, ahead] = logits_and_ahead(true);
    const auto [plain, none] = logits_and_ahead(false);
    EXPECT_TRUE(logits.equal(plain)) << (moved ? "moved" : "in place");
    EXPECT_EQ(ahead, moved ? 0 : 1);
    EXPECT_EQ(none, 0);
  }
}

}  // namespace
}  // namespace tandem::rollout
