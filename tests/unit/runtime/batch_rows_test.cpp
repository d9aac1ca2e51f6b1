// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/sample/batch_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "tandem/base/error.h"
#include "tandem/base/rng.h"
#include "tandem/comm/launch.h"
#include "tandem/data/columns.h"

namespace tandem::runtime {
namespace {

using data::Group;

constexpr double kDeadline_s = 60;
constexpr int64_t kGroup_size = 3;

/// A group as the engine ends it, whoever asks: ragged, and an empty response now and then.
Group made(int64_t id) {
  RandomStream random(17, static_cast<uint64_t>(id));
  Group group{data::GroupId{id}, {}, data::PolicyVersion{id % 3}, {}};
  group.prompt.row = 100 + id;
  group.prompt.text = "prompt " + std::to_string(id), group.prompt.answer = std::to_string(id * id), group.prompt.data_source = "squares";
  for (int64_t t = random.below(5) + 1; t > 0; --t) group.prompt.ids.push_back(static_cast<int32_t>(random.below(1000)));
  for (int64_t i = 0; i < kGroup_size; ++i) {
    data::Sample& s = group.samples.emplace_back();
    s.id = data::sample_id(group.id, kGroup_size, i);
    s.text = "response " + std::to_string(i), s.scored = true, s.score = static_cast<double>(random.below(10)) / 4;
    for (int64_t t = random.below(8); t > 0; --t) {
      s.ids.push_back(static_cast<int32_t>(random.below(1000)));
      s.logprobs.push_back(-static_cast<float>(random.below(100)) / 8);
      s.kept_mass.push_back(-static_cast<float>(random.below(100)) / 64);
      s.versions.push_back(id % 3 + t % 2);
      if (t > 1) s.routes.insert(s.routes.end(), {static_cast<int16_t>(t), static_cast<int16_t>(random.below(9))});
    }
  }
  if (id % 2 == 0) {
    data::Sample& greedy = group.greedy.emplace();
    greedy.scored = id % 4 == 0, greedy.score = greedy.scored ? 0.5 : 0, greedy.text = greedy.scored ? "" : "to be scored";
  }
  return group;
}

std::vector<Group> all_made(int64_t count) {
  std::vector<Group> groups;
  for (int64_t id = 0; id < count; ++id) groups.push_back(made(id));
  return groups;
}

std::vector<std::byte> bytes_of(const std::vector<Group>& groups) {
  return data::pack(data::fields_of(groups));
}

/// What a row gives to training and to scores.
void expect_row(const BatchRows& rows, const Group& head, size_t sample) {
  const Group group = made(value(head.id));
  const data::Sample& s = group.samples[sample];
  EXPECT_TRUE(std::ranges::equal(rows.prompt(head), group.prompt.ids));
  EXPECT_TRUE(std::ranges::equal(rows.body(s.id).response, s.ids));
  EXPECT_TRUE(std::ranges::equal(rows.body(s.id).logprobs, s.logprobs));
  EXPECT_TRUE(std::ranges::equal(rows.body(s.id).routes, s.routes));
}

bool was_born_here(const policy::Ranks& ranks, data::GroupId group) {
  return ranks.rolls_out() && value(group) % ranks.rollout_layout.dp == ranks.rollout_layout.dp_rank(ranks.rollout_rank());
}

/// A rank that writes samples down has all of those that it trained.
void expect_written(const policy::Ranks& ranks, const BatchRows& rows, const std::vector<Group>& heads, const std::vector<int>& owner) {
  if (!ranks.speaks_for_train()) return;
  std::vector<size_t> mine;
  std::vector<Group> wanted;
  for (size_t row = 0; row < owner.size(); ++row) {
    if (owner[row] != ranks.train_dp_rank()) continue;
    mine.push_back(row);
    const Group group = made(value(heads[row / kGroup_size].id));
    if (wanted.empty() || wanted.back().id != group.id) {
      Group& some = wanted.emplace_back(Group{group.id, {}, group.version, {}});
      if (row % kGroup_size == 0) some.prompt = group.prompt;
      else some.prompt.row = group.prompt.row;
    }
    wanted.back().samples.push_back(group.samples[row % kGroup_size]);
  }
  EXPECT_EQ(bytes_of(rows.complete_rows(heads, mine)), bytes_of(wanted));
}

struct Case {
  const char *placement, *train, *rollout;
};

class BatchRowsTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr int64_t kGroups = 12;

  BatchRowsTest() {
    config_.schedule.queue.group_size = kGroup_size;
    config_.parallel.placement = GetParam().placement;
    config_.parallel.train_layout = GetParam().train, config_.parallel.rollout_layout = GetParam().rollout;
  }

  /// The groups of this rank's replica, kept; returns all as heads.
  static std::vector<Group> generate(const policy::Ranks& ranks, BatchRows& rows) {
    std::vector<Group> mine;
    for (int64_t id = 0; id < kGroups; ++id) {
      if (!ranks.rolls_out() || id % ranks.rollout_layout.dp != ranks.rollout_layout.dp_rank(ranks.rollout_rank())) continue;
      rows.keep(mine.emplace_back(made(id)));
    }
    return rows.exchange(ranks.world, std::move(mine), ranks.speaks_for_rollout());
  }

  /// Rows turn by turn, so that the samples of a group have several owners.
  static std::vector<int> owners(const policy::Ranks& ranks) {
    std::vector<int> all;
    for (int row = 0; row < kGroups * kGroup_size; ++row) all.push_back(row * 10 / 3 % ranks.train_layout.dp);
    return all;
  }

  config::RunConfig config_;
};

TEST_P(BatchRowsTest, GoToTheirOwnersAndNowhereElse) {
  comm::run_local(4, kDeadline_s, [&](comm::Group& world) {
    const policy::Ranks ranks(config::layouts_of(config_, world.size()), world);
    planner::Homes rows_homes(ranks.placement, ranks.rollout_layout);
    BatchRows rows(ranks, rows_homes, kGroup_size);
    const std::vector<Group> heads = generate(ranks, rows);
    ASSERT_EQ(std::ssize(heads), kGroups);
    const std::vector<int> owner = owners(ranks);
    const int64_t moved = rows.deal(heads, owner, false);
    for (size_t row = 0; row < owner.size(); ++row) {
      const Group& head = heads[row / kGroup_size];
      const size_t sample = row % kGroup_size;
      EXPECT_EQ(head.id, data::GroupId{static_cast<int64_t>(row) / kGroup_size});
      EXPECT_EQ(head.samples[sample].score, made(value(head.id)).samples[sample].score);
      EXPECT_EQ(rows.num_tokens(head.samples[sample].id), std::ssize(made(value(head.id)).samples[sample].ids));
      const bool trains_it = ranks.trains() && ranks.train_layout.dp_rank(ranks.train_rank()) == owner[row];
      if (trains_it) expect_row(rows, head, sample);
      else if (!was_born_here(ranks, head.id)) {
        EXPECT_THROW((void)rows.body(head.samples[sample].id), InternalError) << "nobody wants it here";
      }
    }
    expect_written(ranks, rows, heads, owner);
    EXPECT_GT(moved, 0);
  });
}

TEST_P(BatchRowsTest, AreKnownByTheVersionsOfTheirTokens) {
  comm::run_local(4, kDeadline_s, [&](comm::Group& world) {
    const policy::Ranks ranks(config::layouts_of(config_, world.size()), world);
    planner::Homes rows_homes(ranks.placement, ranks.rollout_layout);
    BatchRows rows(ranks, rows_homes, kGroup_size);
    for (const Group& head : generate(ranks, rows))
      for (const data::Sample& s : made(value(head.id)).samples)
        for (int64_t version = 0; version < 5; ++version)
          EXPECT_EQ(!s.ids.empty() && rows.facts(s.id).are_of(data::PolicyVersion{version}),
                    !s.ids.empty() && std::ranges::all_of(s.versions, [&](int64_t v) { return v == version; }));
  });
}

TEST_P(BatchRowsTest, WhereTheyWereBornTheyAreDealtWithoutAByte) {
  if (GetParam().train != std::string_view(GetParam().rollout)) GTEST_SKIP() << "other ranks train than generate";
  comm::run_local(4, kDeadline_s, [&](comm::Group& world) {
    const policy::Ranks ranks(config::layouts_of(config_, world.size()), world);
    planner::Homes rows_homes(ranks.placement, ranks.rollout_layout);
    BatchRows rows(ranks, rows_homes, kGroup_size);
    const std::vector<Group> heads = generate(ranks, rows);
    std::vector<int> owner;
    for (int row = 0; row < kGroups * kGroup_size; ++row) owner.push_back(row / static_cast<int>(kGroup_size) % ranks.train_layout.dp);
    EXPECT_EQ(rows.deal(heads, owner, false), 0);
    expect_written(ranks, rows, heads, owner);
  });
}

TEST_P(BatchRowsTest, OfACheckpointAreWhatWasWritten) {
  comm::run_local(4, kDeadline_s, [&](comm::Group& world) {
    const policy::Ranks ranks(config::layouts_of(config_, world.size()), world);
    planner::Homes rows_homes(ranks.placement, ranks.rollout_layout);
    BatchRows rows(ranks, rows_homes, kGroup_size);
    std::vector<data::GroupId> ids;
    for (const Group& head : generate(ranks, rows)) ids.push_back(head.id);
    rows.gather(ids);
    planner::Homes resumed_homes(ranks.placement, ranks.rollout_layout);
    BatchRows resumed(ranks, resumed_homes, kGroup_size);
    std::vector<Group> heads = all_made(kGroups);
    for (Group& group : heads) resumed.restore(group);
    if (ranks.is_first()) {
      EXPECT_EQ(bytes_of(rows.complete(heads)), bytes_of(all_made(kGroups)));
    }
    EXPECT_GT(resumed.deal(heads, owners(ranks), true), 0);
    expect_written(ranks, resumed, heads, owners(ranks));
  });
}

TEST_P(BatchRowsTest, TakenBackAreDealtAnew) {
  comm::run_local(4, kDeadline_s, [&](comm::Group& world) {
    const policy::Ranks ranks(config::layouts_of(config_, world.size()), world);
    planner::Homes rows_homes(ranks.placement, ranks.rollout_layout);
    BatchRows rows(ranks, rows_homes, kGroup_size);
    const std::vector<Group> heads = generate(ranks, rows);
    const std::vector<int> owner = owners(ranks);
    const int64_t moved = rows.deal(heads, owner, true);
    rows.take_back(heads);
    EXPECT_EQ(rows.deal(heads, owner, true), moved) << "they were only where they were born";
    expect_written(ranks, rows, heads, owner);
  });
}

TEST_P(BatchRowsTest, WhatWasLentIsReadThereAndDealtFromThere) {
  comm::run_local(4, kDeadline_s, [&](comm::Group& world) {
    const policy::Ranks ranks(config::layouts_of(config_, world.size()), world);
    planner::Homes rows_homes(ranks.placement, ranks.rollout_layout);
    BatchRows rows(ranks, rows_homes, kGroup_size);
    const std::vector<Group> heads = generate(ranks, rows);
    const std::vector<Group> some(heads.begin() + 2, heads.begin() + 9);
    std::vector<int> borrowers;
    for (size_t g = 0; g < some.size(); ++g) borrowers.push_back(static_cast<int>(g) % ranks.train_layout.dp);
    rows.lend(some, borrowers);
    for (size_t g = 0; g < some.size(); ++g)
      for (size_t i = 0; i < kGroup_size && ranks.trains() && borrowers[g] == ranks.train_dp_rank(); ++i) expect_row(rows, some[g], i);
    std::ranges::for_each(borrowers, [&](int& dp) { dp = (dp + 1) % ranks.train_layout.dp; });
    rows.lend(some, borrowers);  // now two have them
    const std::vector<int> owner = owners(ranks);
    rows.deal(heads, owner, false);
    for (size_t row = 0; row < owner.size(); ++row)
      if (ranks.trains() && ranks.train_dp_rank() == owner[row]) expect_row(rows, heads[row / kGroup_size], row % kGroup_size);
    expect_written(ranks, rows, heads, owner);
    rows.take_back(heads);
    rows.deal(heads, owner, true);
    expect_written(ranks, rows, heads, owner);
  });
}

TEST_P(BatchRowsTest, DroppedWhileTheyAreGradedAreNotExchanged) {
  comm::run_local(4, kDeadline_s, [&](comm::Group& world) {
    const policy::Ranks ranks(config::layouts_of(config_, world.size()), world);
    planner::Homes rows_homes(ranks.placement, ranks.rollout_layout);
    BatchRows rows(ranks, rows_homes, kGroup_size);
    const std::vector<data::GroupId> evicted = {data::GroupId{0}, data::GroupId{3}};
    std::vector<Group> mine;
    for (int64_t id = 0; id < kGroups; ++id)
      if (ranks.rolls_out() && id % ranks.rollout_layout.dp == ranks.rollout_layout.dp_rank(ranks.rollout_rank()))
        rows.keep(mine.emplace_back(made(id)));
    rows.drop(data::bare_heads(evicted, kGroup_size));
    const std::vector<Group> heads = rows.exchange(world, std::move(mine), ranks.speaks_for_rollout());
    EXPECT_EQ(std::ssize(heads), kGroups - 2);
    for (const Group& head : heads) EXPECT_EQ(std::ranges::count(evicted, head.id), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Placements, BatchRowsTest,
                         testing::Values(Case{"colocated", "dp2,tp2", "dp4"}, Case{"colocated", "dp4", "dp2,tp2"},
                                         Case{"colocated", "tp2,pp2", "dp2,pp2"}, Case{"split", "dp2", "tp2"},
                                         Case{"split", "tp2", "dp2"}, Case{"colocated", "dp4", "dp4"},
                                         Case{"colocated", "dp2,tp2", "dp2,tp2"}));

}  // namespace
}  // namespace tandem::runtime
