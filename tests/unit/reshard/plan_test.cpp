// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "box_tables.h"
#include "tandem/base/error.h"

namespace tandem::reshard {
namespace {

/// `ranks` equal slices of a [rows, 4] matrix along dimension 0, each held by `copies` ranks side by side.
RankBoxes row_slices(int ranks, int64_t num_slices, int64_t rows) {
  RankBoxes boxes;
  for (int r = 0; r < ranks; ++r) {
    const int64_t slice = r % num_slices, height = rows / num_slices;
    boxes.push_back({{"w", {rows, 4}, {{slice * height, 0}, {(slice + 1) * height, 4}}}});
  }
  return boxes;
}

TEST(Plan, OfEqualLayoutsIsEmpty) {
  const Plan plan = make_plan(row_slices(4, 2, 8), row_slices(4, 2, 8), {});
  EXPECT_TRUE(plan.alias);
  EXPECT_TRUE(plan.transfers.empty() && plan.copies.empty());
  EXPECT_EQ(plan.stats.bytes_total, 0);
}

TEST(Plan, TakesWhatARankHoldsAndBalancesTheSenders) {
  // Two replicas of two halves become four whole copies: each rank lacks one half, which two ranks hold.
  const Plan plan = make_plan(row_slices(4, 2, 8), row_slices(4, 1, 8), {.element_bytes = 2});
  EXPECT_EQ(plan.stats.bytes_total, 4 * 16 * 2);
  EXPECT_EQ(plan.stats.bytes_copied, 4 * 16 * 2);
  for (int64_t sent : plan.stats.sent_bytes) EXPECT_EQ(sent, 32);
}

TEST(Plan, BucketsBoundWhatARankStages) {
  const Plan plan = make_plan(row_slices(2, 2, 64), row_slices(2, 1, 64), {.element_bytes = 2, .bucket_bytes = 64});
  EXPECT_LE(plan.stats.staging_peak_bytes, 64);
  EXPECT_EQ(plan.stats.bytes_total, 2 * 32 * 4 * 2);
  EXPECT_GE(plan.num_buckets, 2 * 2 * 32 * 4 * 2 / 2 / 64);
}

TEST(Plan, RefusesABoxThatNobodyHolds) {
  RankBoxes source = row_slices(2, 2, 8), target = row_slices(2, 1, 8);
  source[1].clear();
  EXPECT_THROW(make_plan(source, target, {}), InternalError);
}

TEST(Plan, SubtractionLeavesDisjointPartsOfTheRightSize) {
  const Box box{{0, 0, 0}, {4, 5, 6}}, hole{{1, 0, 2}, {3, 2, 9}};
  int64_t elements = 0;
  const auto parts = subtract(box, hole);
  for (size_t i = 0; i < parts.size(); ++i) {
    elements += parts[i].num_elements();
    EXPECT_FALSE(intersect(parts[i], hole).has_value());
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(intersect(parts[i], parts[j]).has_value());
  }
  EXPECT_EQ(elements, 4 * 5 * 6 - 2 * 2 * 4);
}

/// Every element by its index in the global tensor; slow and obvious.
template <class Visit>
void each_element(const Box& box, const std::vector<int64_t>& shape, Visit visit) {
  for (int64_t i = 0; i < box.num_elements(); ++i) {
    int64_t rest = i, flat = 0, stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      flat += (box.begin[d] + rest % box.extent(d)) * stride;
      rest /= box.extent(d);
      stride *= shape[d];
    }
    visit(flat);
  }
}

TEST(Plan, OfRandomTablesSendsEveryMissingElementOnce) {
  constexpr uint64_t kSeed = 4711;
  for (uint64_t trial = 0; trial < 1000; ++trial) {
    RandomStream random(kSeed, trial);
    const int ranks = static_cast<int>(1 + random.below(5));
    const Shapes shapes = random_shapes(random);
    const RankBoxes source = random_layout(shapes, ranks, random), target = random_layout(shapes, ranks, random);
    const PlanOptions options = {.element_bytes = 4, .bucket_bytes = 4 * (1 + random.below(40))};
    const Plan plan = make_plan(source, target, options);
    if (plan.alias) continue;
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << " stream " << trial);
    // (receiver, target entry, element) -> times written; and the bound counted element by element.
    std::map<std::tuple<int, int64_t, int64_t>, int> written;
    std::map<std::pair<int64_t, int>, int64_t> staged;
    int64_t sent_elements = 0;
    auto book = [&](const Transfer& t) {
      const TensorSpec &from = source[t.from][t.source_index], &to = target[t.to][t.target_index];
      ASSERT_EQ(from.name, to.name);
      ASSERT_EQ(intersect(from.box, t.box), t.box);
      ASSERT_EQ(intersect(to.box, t.box), t.box);
      each_element(t.box, to.shape, [&](int64_t e) { ++written[{t.to, t.target_index, e}]; });
    };
    for (const Transfer& t : plan.copies) book(t);
    for (const Transfer& t : plan.transfers) {
      book(t);
      ASSERT_NE(t.from, t.to);
      sent_elements += t.box.num_elements();
      for (int r : {t.from, t.to}) staged[{t.bucket, r}] += t.box.num_elements() * options.element_bytes;
    }
    int64_t wanted = 0, lacking = 0;
    for (int r = 0; r < ranks; ++r)
      for (int64_t i = 0; i < std::ssize(target[r]); ++i)
        each_element(target[r][i].box, target[r][i].shape, [&](int64_t e) {
          ++wanted;
          ASSERT_EQ((written[{r, i, e}]), 1);
          bool has = false;
          for (const TensorSpec& own : source[r])
            if (own.name == target[r][i].name) each_element(own.box, own.shape, [&](int64_t o) { has = has || o == e; });
          lacking += !has;
        });
    ASSERT_EQ(std::ssize(written), wanted);
    ASSERT_EQ(sent_elements, lacking);
    ASSERT_EQ(plan.stats.bytes_total, lacking * options.element_bytes);
    ASSERT_EQ(plan.stats.lower_bound_bytes, lacking * options.element_bytes);
    for (const auto& [where, bytes] : staged) ASSERT_LE(bytes, options.bucket_bytes);
  }
}

}  // namespace
}  // namespace tandem::reshard
