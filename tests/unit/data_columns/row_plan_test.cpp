// SPDX-License-Identifier: Apache-2.0
#include "tandem/data/row_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tandem/base/error.h"
#include "tandem/base/rng.h"

namespace tandem::data {
namespace {

struct Place {
  RowPart row;
  int64_t bytes;
  std::vector<int> holders, wanters;
};

std::vector<RowMove> plan(const std::vector<Place>& places) {
  std::vector<RowPlace> views;
  for (const Place& p : places) views.push_back({p.row, p.bytes, p.holders, p.wanters});
  return plan_rows(views);
}

TEST(RowPlan, IsEmptyWhereTheLayoutsAreEqual) {
  EXPECT_TRUE(plan({{{SampleId{1}}, 8, {0, 1}, {1, 0}}, {{SampleId{2}}, 8, {2}, {2}}, {{SampleId{3}}, 8, {2}, {}}}).empty());
}

TEST(RowPlan, SendsEachRowOnceToEachRankThatLacksIt) {
  const std::vector<RowMove> expected = {{{SampleId{1}}, 0, 1}, {{SampleId{1}}, 0, 3}, {{SampleId{2}, 1}, 1, 0}};
  EXPECT_EQ(plan({{{SampleId{1}}, 8, {0}, {1, 0, 3}}, {{SampleId{2}, 1}, 8, {1}, {0}}}), expected);
}

TEST(RowPlan, RefusesARowThatNobodyHolds) {
  EXPECT_THROW(plan({{{SampleId{1}}, 8, {}, {1}}}), InternalError);
  EXPECT_TRUE(plan({{{SampleId{1}}, 8, {}, {}}}).empty());
}

// Any ranks hold, any ranks want: the lower bound is kept, nobody sends what it lacks, and holders of the same rows send alike.
TEST(RowPlan, KeepsTheLowerBoundForRandomLayouts) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomStream random(seed, 0);
    const int64_t ranks = 1 + random.below(6);
    std::vector<Place> places;
    int64_t lower_bound = 0;
    for (int64_t i = 0; i < 40; ++i) {
      Place& p = places.emplace_back(Place{{SampleId{i}, static_cast<int32_t>(random.below(2))}, random.below(100), {}, {}});
      p.holders.push_back(static_cast<int>(random.below(ranks)));
      for (int r = 0; r < ranks; ++r) {
        if (r != p.holders[0] && random.below(3) == 0) p.holders.push_back(r);
        if (random.below(2) == 0) p.wanters.push_back(r);
      }
      for (int to : p.wanters) lower_bound += std::ranges::count(p.holders, to) == 0 ? p.bytes : 0;
    }
    int64_t bytes = 0;
    std::set<std::pair<int64_t, int>> arrived;
    for (const RowMove& m : plan(places)) {
      const Place& p = places[static_cast<size_t>(value(m.row.sample))];
      bytes += p.bytes;
      EXPECT_EQ(m.row, p.row);
      EXPECT_EQ(std::ranges::count(p.holders, m.from), 1);
      EXPECT_EQ(std::ranges::count(p.holders, m.to), 0);
      EXPECT_TRUE(arrived.emplace(value(m.row.sample), m.to).second) << "twice";
    }
    EXPECT_EQ(bytes, lower_bound);
    for (const Place& p : places)
      for (int to : p.wanters) EXPECT_EQ(arrived.contains({value(p.row.sample), to}), std::ranges::count(p.holders, to) == 0);
  }
}

TEST(RowPlan, LevelsTheBytesOverHoldersOfTheSameRows) {
  std::vector<Place> places;
  for (int64_t i = 0; i < 60; ++i) places.push_back({{SampleId{i}}, 1 + i * 7 % 13, {0, 1, 2}, {3}});
  std::map<int, int64_t> sent;
  for (const RowMove& m : plan(places)) sent[m.from] += places[static_cast<size_t>(value(m.row.sample))].bytes;
  ASSERT_EQ(sent.size(), 3u);
  const auto [least, most] = std::ranges::minmax_element(sent, {}, [](const auto& s) { return s.second; });
  EXPECT_LE(most->second - least->second, 13);  // the largest row
}

}  // namespace
}  // namespace tandem::data
