// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "random_trees.h"
#include "tandem/model/op/context/share.h"

namespace tandem::model::op {
namespace {

using test::num_tokens;
using test::random_trees;

constexpr uint64_t kShareSeed = 20261122;

// By token, the keys it sees, counted one by one.
std::vector<int64_t> cells_by_token(const Trees& trees) {
  std::vector<int64_t> cells;
  for (const kernel::Tree& tree : trees) {
    for (int64_t i = 1; i <= tree.stem; ++i) cells.push_back(i);
    for (int64_t length : tree.branches)
      for (int64_t i = 1; i <= length; ++i) cells.push_back(tree.stem + i);
  }
  return cells;
}

struct Load {
  std::vector<int64_t> tokens, cells;  // by rank

  static int64_t spread(const std::vector<int64_t>& of) {
    const auto [least, most] = std::minmax_element(of.begin(), of.end());
    return *most - *least;
  }
  static double above_mean(const std::vector<int64_t>& of) {
    const auto total = static_cast<double>(std::accumulate(of.begin(), of.end(), int64_t{0}));
    return static_cast<double>(*std::max_element(of.begin(), of.end())) * static_cast<double>(of.size()) / total - 1;
  }
};

// Checks that each token is dealt once, in rising runs with a gap between them.
Load load_of(const ContextShare& share, const Trees& trees) {
  const std::vector<int64_t> cells = cells_by_token(trees);
  std::vector<int> dealt(cells.size());
  Load load;
  for (size_t r = 0; r < share.runs.size(); ++r) {
    int64_t end = -1, sum = 0;
    for (const TokenRun& run : share.runs[r]) {
      EXPECT_GT(run.begin, end);
      EXPECT_GT(run.length, 0);
      end = run.begin + run.length;
      for (int64_t t = run.begin; t < end; ++t) sum += cells.at(static_cast<size_t>(t)), ++dealt[static_cast<size_t>(t)];
    }
    load.tokens.push_back(share.num_tokens(static_cast<int>(r)));
    load.cells.push_back(sum);
    EXPECT_EQ(std::ssize(share.tokens(static_cast<int>(r))), load.tokens.back());
  }
  EXPECT_TRUE(std::all_of(dealt.begin(), dealt.end(), [](int times) { return times == 1; }));
  EXPECT_EQ(share.most_tokens(), *std::max_element(load.tokens.begin(), load.tokens.end()));
  return load;
}

TEST(ContextShare, RanksAreLevelInTokensAndCellsWithinTheStatedBounds) {
  for (uint64_t trial = 0; trial < 300; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << kShareSeed << " stream " << trial);
    RandomStream random(kShareSeed, trial);
    const Trees trees = random_trees(random, trial % 3 == 0 ? 40 : 3000);
    const int ranks = 1 + static_cast<int>(random.below(8));
    const Load load = load_of(context_share(trees, ranks), trees);
    const int64_t piece = share_piece(num_tokens(trees), ranks);
    int64_t num_long = 0, most_keys = 0;
    for (const kernel::Tree& tree : trees) {
      num_long += tree.stem >= 2 * ranks * piece;
      most_keys = std::max(most_keys, tree.stem);
      for (int64_t length : tree.branches) {
        num_long += length >= 2 * ranks * piece;
        most_keys = std::max(most_keys, tree.stem + length);
      }
    }
    EXPECT_LE(Load::spread(load.tokens), 2 * piece + num_long);
    EXPECT_LE(Load::spread(load.cells), 2 * piece * most_keys);
  }
}

TEST(ContextShare, OneLongSequenceIsCutIntoEqualFrontsAndBacks) {
  const ContextShare share = context_share({{0, 4096, {}}}, 4);
  for (int r = 0; r < 4; ++r) {
    ASSERT_EQ(share.num_tokens(r), 1024);
    if (share.runs[static_cast<size_t>(r)].size() == 1) continue;  // the two chunks in the middle lie side by side
    const TokenRun front = share.runs[static_cast<size_t>(r)].at(0), back = share.runs[static_cast<size_t>(r)].at(1);
    EXPECT_EQ(front.length, 512);
    EXPECT_EQ(front.begin, 4096 - back.begin - back.length);
  }
}

TEST(ContextShare, ABatchOfGroupsIsLevelWithinThreePercent) {
  RandomStream random(kShareSeed, 1000);
  Trees trees;
  int64_t begin = 0;
  for (int group = 0; group < 4; ++group) {
    kernel::Tree tree{begin, 200 + random.below(800), {}};
    begin += tree.stem;
    for (int sample = 0; sample < 8; ++sample) {
      tree.branches.push_back(static_cast<int64_t>(500 * std::exp(0.8 * random.normal())));
      begin += tree.branches.back();
    }
    trees.push_back(std::move(tree));
  }
  for (int ranks : {2, 3, 4, 8}) {
    const Load load = load_of(context_share(trees, ranks), trees);
    EXPECT_LT(Load::above_mean(load.tokens), 0.03) << ranks << " ranks";
    EXPECT_LT(Load::above_mean(load.cells), 0.03) << ranks << " ranks";
  }
}

TEST(ContextShare, FewTokensStayTogetherAndLeaveRanksWithout) {
  const ContextShare share = context_share({{0, 20, {}}, {20, 5, {}}}, 4);
  std::vector<int64_t> tokens;
  for (int r = 0; r < 4; ++r) tokens.push_back(share.num_tokens(r));
  std::sort(tokens.begin(), tokens.end());
  EXPECT_EQ(tokens, (std::vector<int64_t>{0, 0, 5, 20}));
}

}  // namespace
}  // namespace tandem::model::op
