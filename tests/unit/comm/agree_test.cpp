// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/agree.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/launch.h"
#include "tandem/comm/scalar.h"

namespace tandem::comm {
namespace {

constexpr double kDeadlineS = 60;

template <class Check>
void on_one_and_on_three(const Check& check) {
  for (int size : {1, 3}) run_local(size, kDeadlineS, [&](Group& world) { check(world); });
}

TEST(Scalar, IsTheLargestTheSmallestOrTheSumOfAllRanks) {
  on_one_and_on_three([](Group& world) {
    const int64_t mine = 10 + world.rank(), n = world.size();
    EXPECT_EQ(max_over(world, mine), 10 + n - 1);
    EXPECT_EQ(min_over(world, mine), 10);
    EXPECT_EQ(sum_over(world, mine), 10 * n + n * (n - 1) / 2);
    const double half = 0.5 * world.rank() - 1;
    EXPECT_EQ(max_over(world, half), 0.5 * static_cast<double>(n - 1) - 1);
    EXPECT_EQ(min_over(world, half), -1);
    EXPECT_EQ(sum_over(world, half), 0.25 * static_cast<double>(n * (n - 1)) - static_cast<double>(n));
    EXPECT_TRUE(any_of(world, world.rank() == world.size() - 1));
    EXPECT_FALSE(any_of(world, false));
  });
}

TEST(Scalar, SeveralNumbersAreReducedEachInItsPlace) {
  on_one_and_on_three([](Group& world) {
    const double n = world.size(), r = world.rank();
    std::vector<double> sums = {1, r}, most = {-r, r};
    sum_over(world, sums);
    max_over(world, most);
    EXPECT_EQ(sums, (std::vector<double>{n, n * (n - 1) / 2}));
    EXPECT_EQ(most, (std::vector<double>{0, n - 1}));
    std::vector<int64_t> whole = {world.rank(), 7, -world.rank()};
    max_over(world, whole);
    EXPECT_EQ(whole, (std::vector<int64_t>{world.size() - 1, 7, 0}));
  });
}

struct Record {
  double first = 0, second = 0;
  void each(auto&& visit) { visit(first), visit(second); }
};

TEST(Scalar, TheFieldsOfARecordAreSummedByName) {
  on_one_and_on_three([](Group& world) {
    Record record{1, static_cast<double>(world.rank())};
    sum_fields(world, record);
    EXPECT_EQ(record.first, world.size());
    EXPECT_EQ(record.second, world.size() * (world.size() - 1) / 2);
  });
}

TEST(Scalar, WhatIsNotFiniteOnOneRankIsSoOnAll) {
  on_one_and_on_three([](Group& world) {
    const double bad = world.rank() == 0 ? std::numeric_limits<double>::quiet_NaN() : 1;
    EXPECT_TRUE(std::isnan(sum_over(world, bad)));
    EXPECT_TRUE(std::isnan(max_over(world, bad)));
  });
}

TEST(Agree, TextsAndValuesComeInOrderOfRanks) {
  on_one_and_on_three([](Group& world) {
    const std::string mine(static_cast<size_t>(world.rank() + 1), 'x');
    EXPECT_EQ(text_of_first(world, mine), "x");
    const std::vector<std::string> texts = texts_of_all(world, mine);
    ASSERT_EQ(std::ssize(texts), world.size());
    for (size_t rank = 0; rank < texts.size(); ++rank) EXPECT_EQ(texts[rank].size(), rank + 1);
    EXPECT_EQ(value_of_first(world, 40 + world.rank()), 40);
    std::vector<int> want;
    for (int rank = 0; rank < world.size(); ++rank) want.insert(want.end(), static_cast<size_t>(rank), rank);
    EXPECT_EQ(values_of_all(world, std::vector<int>(static_cast<size_t>(world.rank()), world.rank())), want);
  });
}

TEST(Agree, OfEachNameTheLargestNumberWinsWhoeverHasIt) {
  run_local(3, kDeadlineS, [](Group& world) {
    std::map<std::string, double> mine = {{"all", 0.1 * (world.rank() + 1)}};
    if (world.rank() == 1) mine["one"] = -1.0 / 3;
    EXPECT_EQ(largest_of_all(world, mine), (std::map<std::string, double>{{"all", 0.1 * 3}, {"one", -1.0 / 3}}));
  });
}

TEST(Agree, RowsAreEverywhereAfterwardsThoughAnotherRankThatHasThemIsSilent) {
  run_local(3, kDeadlineS, [](Group& world) {
    std::vector<std::vector<float>> rows(3);
    const auto me = static_cast<size_t>(world.rank());
    if (me < 2) rows[me] = std::vector<float>(me + 1, static_cast<float>(me));
    else rows[0] = {5};  // of a rank that does not speak
    exchange_rows(world, rows, me < 2);
    EXPECT_EQ(rows, (std::vector<std::vector<float>>{{0}, {1, 1}, {}}));
  });
}

TEST(Agree, WhatFailsOnOneRankFailsOnAllWithItsWords) {
  run_local(3, kDeadlineS, [](Group& world) {
    int done = 0;
    run_alike(world, [&] { ++done; });
    EXPECT_EQ(done, 1);
    try {
      run_alike(world, [&] {
        if (world.rank() == 1) throw UserError("here", "the disk is full", "more room");
      });
      FAIL() << "on rank " << world.rank();
    } catch (const PeerError& e) {
      EXPECT_NE(std::string(e.what()).find("rank 1: "), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("the disk is full"), std::string::npos) << e.what();
    }
  });
}

TEST(Agree, TheFirstFaultKeepsItsCodeItsWordsAndItsRank) {
  run_local(4, kDeadlineS, [](Group& world) {
    EXPECT_FALSE(first_fault(world, std::nullopt));
    const bool fails = world.rank() % 2 == 1;
    const Fault mine{2, join_text("rank ", world.rank(), " has no\nroom")};
    const auto first = first_fault(world, fails ? std::optional(mine) : std::nullopt);
    ASSERT_TRUE(first);
    EXPECT_EQ(first->exit_code, 2);
    EXPECT_EQ(first->what, "rank 1 has no\nroom");
    EXPECT_EQ(first->rank, 1);
    EXPECT_FALSE(first->is_shared);
    EXPECT_TRUE(first_fault(world, Fault{3, "the same"})->is_shared);
  });
}

TEST(Agree, ARankAloneFailsWithItsOwnError) {
  run_local(1, kDeadlineS, [](Group& world) {
    EXPECT_THROW(run_alike(world, [] { throw UserError("here", "is wrong", "right"); }), UserError);
  });
}

}  // namespace
}  // namespace tandem::comm
