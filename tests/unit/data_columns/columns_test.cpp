// SPDX-License-Identifier: Apache-2.0
#include "tandem/data/columns.h"

#include <gtest/gtest.h>

#include "tandem/base/error.h"
#include "tandem/base/rng.h"

namespace tandem::data {
namespace {

std::vector<Group> example(bool scored) {
  std::vector<Group> groups(2);
  for (int64_t g = 0; g < 2; ++g) {
    groups[g].id = GroupId{g + 5};
    groups[g].version = PolicyVersion{3 + g};
    groups[g].prompt = {40 + g, "1+1=", {1, 2, 3}, "2", "sums"};
    for (int64_t i = 0; i < 3; ++i) {
      Sample s;
      s.id = sample_id(groups[g].id, 3, i);
      for (int64_t t = 0; t < 2 * i; ++t) {
        s.ids.push_back(static_cast<int32_t>(7 * t + i));
        s.logprobs.push_back(-0.5f * static_cast<float>(t));
        s.versions.push_back(3 + t / 2);
      }
      s.finish = FinishReason::kLength;
      s.text = std::string("a\0b", static_cast<size_t>(i));
      s.scored = scored;
      s.score = scored ? 0.25 * static_cast<double>(i) : 0;
      if (scored) s.parts = {{"exact", 1.0}, {"format", 0.5}};
      groups[g].samples.push_back(s);
    }
  }
  return groups;
}

void expect_equal(const std::vector<Group>& a, const std::vector<Group>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(pack(fields_of(a)), pack(fields_of(b)));
  for (size_t g = 0; g < a.size(); ++g) {
    EXPECT_EQ(a[g].id, b[g].id);
    EXPECT_EQ(a[g].prompt.text, b[g].prompt.text);
    EXPECT_EQ(a[g].prompt.ids, b[g].prompt.ids);
    ASSERT_EQ(a[g].samples.size(), b[g].samples.size());
    for (size_t i = 0; i < a[g].samples.size(); ++i) {
      EXPECT_EQ(a[g].samples[i].ids, b[g].samples[i].ids);
      EXPECT_EQ(a[g].samples[i].text, b[g].samples[i].text);
      EXPECT_EQ(a[g].samples[i].parts, b[g].samples[i].parts);
      EXPECT_EQ(a[g].samples[i].scored, b[g].samples[i].scored);
    }
  }
}

// Packed samples come from other ranks and from files: what is wrong with them is no bug of this program.
TEST(Columns, FieldsThatDoNotBelongTogetherAreThePeersFault) {
  const Fields right = fields_of(example(true));
  for (const auto& [name, column] : right) {
    if (name == "score" || name == "routes" || name == "trainable" || name == "doubt") continue;  // without scores the samples are unscored
    Fields less = right;
    less.erase(name);
    EXPECT_THROW(groups_of(less), PeerError) << name;
    Fields other = right;
    other[name].values = std::vector<int64_t>(other[name].lengths.size(), 1);
    if (std::holds_alternative<std::vector<int64_t>>(column.values))
      other[name].values = std::vector<char>(other[name].lengths.size(), 'x');
    other[name].lengths.assign(other[name].lengths.size(), 1);
    EXPECT_THROW(groups_of(other), PeerError) << name << " of another type";
  }
  for (const char* name : {"sample", "group", "prompt_row", "finish", "score"}) {
    Fields uneven = right;
    uneven[name].lengths.front() = 0, uneven[name].lengths.back() = 2;
    EXPECT_THROW(groups_of(uneven), PeerError) << name;
  }
  Fields unknown = right;
  unknown["finish"].values = std::vector<int32_t>(unknown["finish"].lengths.size(), 77);
  EXPECT_THROW(groups_of(unknown), PeerError);
  Fields nameless = right;
  std::get<std::vector<char>>(nameless["part_names"].values).assign(std::get<std::vector<char>>(right.at("part_names").values).size(), 'x');
  EXPECT_THROW(groups_of(nameless), PeerError);
}

TEST(Columns, GroupsComeBackAsTheyWere) {
  for (bool scored : {true, false}) {
    const auto groups = example(scored);
    expect_equal(groups_of(fields_of(groups)), groups);
    expect_equal(groups_of(unpack(pack(fields_of(groups)))), groups);
  }
  EXPECT_TRUE(groups_of({}).empty());
}

TEST(Columns, WhatAnOlderTandemPackedIsRead) {
  Fields older = fields_of(example(true));
  ASSERT_EQ(older.erase("trainable"), 1u);
  expect_equal(groups_of(older), example(true));
}

TEST(Columns, AGreedyAnswerTravelsAsItsTextOrItsScore) {
  std::vector<Group> groups = example(true);
  EXPECT_FALSE(fields_of(groups).contains("greedy")) << "groups without one say nothing of it";
  Sample& greedy = groups[1].greedy.emplace();
  for (bool scored : {false, true}) {
    greedy.scored = scored, greedy.score = scored ? -0.75 : 0, greedy.text = scored ? "" : "seven";
    const std::vector<Group> back = groups_of(unpack(pack(fields_of(groups))));
    EXPECT_FALSE(back.at(0).greedy);
    ASSERT_TRUE(back.at(1).greedy);
    EXPECT_EQ(back[1].greedy->scored, scored);
    EXPECT_EQ(back[1].greedy->score, greedy.score);
    EXPECT_EQ(back[1].greedy->text, greedy.text);
    expect_equal(back, groups);
  }
}

TEST(Columns, RowsAreConcatenatedWithoutPadding) {
  const Fields fields = fields_of(example(true));
  const Column& ids = fields.at("response_ids");
  EXPECT_EQ(ids.lengths, (std::vector<int64_t>{0, 2, 4, 0, 2, 4}));
  EXPECT_EQ(std::get<std::vector<int32_t>>(ids.values).size(), 12u);
}

TEST(Columns, DamagedBytesAreRefusedAndNeverReadOutside) {
  const std::vector<std::byte> good = pack(fields_of(example(true)));
  for (size_t n = 0; n < good.size(); n += 7) EXPECT_THROW(unpack(std::span(good).first(n)), PeerError) << n;
  RandomStream random(11, 0);
  int refused = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    auto bad = good;
    bad[static_cast<size_t>(random.below(std::ssize(bad)))] ^= std::byte(1 + random.below(255));
    try {
      unpack(bad);
    } catch (const PeerError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace tandem::data
