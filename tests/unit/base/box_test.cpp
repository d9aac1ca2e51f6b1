// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/box.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "../../box_elements.h"
#include "tandem/base/error.h"

namespace tandem {
namespace {

using test::elements_of;

TEST(Box, IntersectionIsWhatBothHave) {
  EXPECT_EQ(intersect({{0, 0}, {4, 5}}, {{2, 3}, {9, 9}}), (Box{{2, 3}, {4, 5}}));
  EXPECT_EQ(intersect({{0}, {4}}, {{4}, {5}}), std::nullopt) << "boxes that touch have nothing in common";
  EXPECT_THROW(intersect({{0}, {4}}, {{0, 0}, {1, 1}}), InternalError);
}

TEST(Box, SubtractionLeavesDisjointPartsOfTheRightSize) {
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

TEST(Box, WhatDoesNotMeetAHoleStaysWholeInItsPlace) {
  const std::vector<Box> boxes = {{{0}, {2}}, {{4}, {8}}, {{10}, {12}}};
  EXPECT_EQ(subtract(boxes, Box{{5}, {6}}), (std::vector<Box>{{{0}, {2}}, {{4}, {5}}, {{6}, {8}}, {{10}, {12}}}));
  EXPECT_EQ(subtract(boxes, Box{{0}, {12}}), std::vector<Box>());
}

TEST(Box, CutPartsAreWithinOrOutsideAndLoseNothing) {
  const std::vector<Box> boxes = {{{0, 0}, {4, 4}}, {{4, 0}, {8, 4}}};
  const Box by{{2, 1}, {6, 3}};
  std::vector<int64_t> before = elements_of(boxes), after = elements_of(cut(boxes, by));
  for (const Box& part : cut(boxes, by)) {
    const auto common = intersect(part, by);
    EXPECT_TRUE(!common || *common == part);
  }
  std::ranges::sort(before), std::ranges::sort(after);
  EXPECT_EQ(after, before);
}

TEST(Box, ARangeOfABoxIsItsElementsInOrder) {
  for (const Box& box : {Box{}, Box{{3}, {9}}, Box{{1, 2}, {5, 4}}, Box{{1, 0, 2}, {3, 4, 5}}}) {
    const std::vector<int64_t> all = elements_of({box});
    for (int64_t begin = 0; begin <= std::ssize(all); ++begin)
      for (int64_t end = begin; end <= std::ssize(all); ++end)
        EXPECT_EQ(elements_of(boxes_of_range(box, begin, end)), std::vector(all.begin() + begin, all.begin() + end));
  }
}

TEST(Box, APositionCountsTheElementsBefore) {
  const Box box{{1, 0, 2}, {3, 4, 5}};
  int64_t before = 0;
  for (int64_t i = 1; i < 3; ++i)
    for (int64_t j = 0; j < 4; ++j)
      for (int64_t k = 2; k < 5; ++k) EXPECT_EQ(position_in(box, {i, j, k}), before++);
  EXPECT_EQ(before, box.num_elements());
}

}  // namespace
}  // namespace tandem
