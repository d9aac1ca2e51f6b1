// SPDX-License-Identifier: Apache-2.0
// Bodies of finished groups come as their store has them; one that is not what was told of it, or that the model cannot have, does not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tandem/comm/endpoint.h"
#include "tandem/queue/body/store.h"
#include "tandem/worker/body_reader.h"

namespace tandem::worker {
namespace {

constexpr queue::GroupLimits kLimits{.group_size = 2, .vocab_size = 100, .num_experts = 8, .route_width = 1};

data::Group group_of(int64_t id, int32_t token = 7, int16_t route = -1) {
  data::Group group{GroupId{id}, {}, {}, std::vector<data::Sample>(2)};
  group.prompt.ids = {1, 2};
  for (int64_t i = 0; i < 2; ++i) {
    data::Sample& sample = group.samples[static_cast<size_t>(i)];
    sample.id = data::sample_id(group.id, 2, i);
    sample.ids = {token, 3}, sample.logprobs = {-1, -2}, sample.versions = {0, 0}, sample.routes = {route, 0, 0};
  }
  return group;
}

std::vector<GroupId> groups_of(const std::vector<Lost>& lost) {
  std::vector<GroupId> groups;
  for (const Lost& each : lost) groups.push_back(each.group);
  return groups;
}

struct World {
  Wanted keep(const data::Group& group) {
    const std::span<const data::Group> one(&group, 1);
    data::Fields columns = data::fields_of(one);
    Wanted wanted{group.id, server.place(), queue::measures_of(one, columns), data::Prompt{.text = "?", .ids = {1, 2}, .answer = "gold"}};
    store.put(data::ids_of(one), std::move(columns));
    return wanted;
  }
  queue::Store store{queue::body_fields()};
  queue::wire::StoreServer server{store, "tcp://127.0.0.1:0"};
  BodyReader reader{kLimits, 20};
  queue::TensorCache here{queue::body_fields()};
};

TEST(BodyReader, WhatTheModelCannotHaveDoesNotCome) {
  World world;
  std::vector<Wanted> wanted;
  for (const data::Group& group : {group_of(0), group_of(1, 100), group_of(2, -1), group_of(3, 99), group_of(4, 7, 8), group_of(5, 7, 7)})
    wanted.push_back(world.keep(group));
  wanted.push_back(world.keep(group_of(6)));
  wanted.back().measures[queue::kLogprobs] = 3;
  data::Group few = group_of(7);
  few.samples[1].routes = {0};
  wanted.push_back(world.keep(few));
  EXPECT_EQ(groups_of(world.reader.fetch_now(wanted)), (std::vector<GroupId>{GroupId{1}, GroupId{2}, GroupId{4}, GroupId{6}, GroupId{7}}));
  EXPECT_EQ(world.reader.take(world.here), (std::vector<GroupId>{GroupId{0}, GroupId{3}, GroupId{5}}));
  EXPECT_EQ(world.here.read<int32_t>(data::sample_id(GroupId{3}, 2, 1), queue::kResponse)[0], 99);
}

// What a worker says of itself in words would cost the run its loss; each is found before anything is trained, and named.
TEST(BodyReader, WhatNoModelDrawsDoesNotComeAndIsNamed) {
  using Change = void (*)(data::Sample&, data::Prompt&);
  const std::vector<std::pair<Change, std::string>> changes = {
      {[](data::Sample& s, data::Prompt&) { s.logprobs[1] = std::nanf(""); }, "a log-probability of nan"},
      {[](data::Sample& s, data::Prompt&) { s.logprobs[0] = 0.25; }, "a log-probability of 0.25"},
      {[](data::Sample& s, data::Prompt&) { s.logprobs[0] = -std::numeric_limits<float>::infinity(); }, "a log-probability of -inf"},
      {[](data::Sample& s, data::Prompt&) { s.kept_mass = {0, 1}; }, "a kept mass of 1"},
      {[](data::Sample& s, data::Prompt&) { s.ids[0] = 100; }, "a token of 100"},
      {[](data::Sample& s, data::Prompt&) { s.text = std::string(4000, 'x'); }, "a text of 4000 bytes"},
      {[](data::Sample&, data::Prompt& prompt) { prompt.ids = {1, 3}; }, "another prompt"}};
  for (const auto& [change, word] : changes) {
    World world;
    data::Group group = group_of(0);
    change(group.samples[1], group.prompt);
    const std::vector<Lost> lost = world.reader.fetch_now({world.keep(group)});
    ASSERT_EQ(lost.size(), 1u) << word;
    EXPECT_NE(lost[0].fault.find(word), std::string::npos) << lost[0].fault;
  }
}

TEST(BodyReader, ThePromptIsTheRunsOwn) {
  World world;
  EXPECT_TRUE(world.reader.fetch_now({world.keep(group_of(3))}).empty());
  EXPECT_EQ(world.reader.take(world.here).size(), 1u);
  const auto answer = world.here.read<char>(data::sample_id(GroupId{3}, 2, 0), queue::kAnswer);
  EXPECT_EQ(std::string(answer.begin(), answer.end()), "gold") << "which no worker had";
}

TEST(BodyReader, OneThatIsNotThereIsLostAlsoWhereOthersAre) {
  World world;
  const Wanted here = world.keep(group_of(0));
  Wanted gone = world.keep(group_of(1));
  world.store.drop(data::ids_of(data::bare_heads(std::vector<GroupId>{GroupId{1}}, 2)));
  EXPECT_EQ(groups_of(world.reader.fetch_now({here, gone})), std::vector<GroupId>{GroupId{1}});
  EXPECT_EQ(world.reader.take(world.here), std::vector<GroupId>{GroupId{0}});
  gone.store = "tcp://127.0.0.1:1 " + comm::make_keys().public_key;
  EXPECT_EQ(groups_of(world.reader.fetch_now({gone})), std::vector<GroupId>{GroupId{1}}) << "nobody is there";
}

}  // namespace
}  // namespace tandem::worker
