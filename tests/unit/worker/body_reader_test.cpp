// SPDX-License-Identifier: Apache-2.0
// Bodies of finished groups come as their store has them; one that is not what was told of it, or that the model cannot have, does not.
#include <gtest/gtest.h>

#include <algorithm>

#include "tandem/queue/body/store.h"
#include "tandem/worker/body_reader.h"

namespace tandem::worker {
namespace {

constexpr BodyLimits kLimits{.group_size = 2, .vocab_size = 100, .num_experts = 8, .route_width = 1};

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

struct World {
  Wanted keep(const data::Group& group) {
    const std::span<const data::Group> one(&group, 1);
    data::Fields columns = data::fields_of(one);
    Wanted wanted{group.id, server.place(), queue::measures_of(one, columns)};
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
  const std::vector<GroupId> lost = world.reader.fetch_now(wanted);
  EXPECT_EQ(lost, (std::vector<GroupId>{GroupId{1}, GroupId{2}, GroupId{4}, GroupId{6}, GroupId{7}}));
  EXPECT_EQ(world.reader.take(world.here), (std::vector<GroupId>{GroupId{0}, GroupId{3}, GroupId{5}}));
  EXPECT_EQ(world.here.read<int32_t>(data::sample_id(GroupId{3}, 2, 1), queue::kResponse)[0], 99);
}

TEST(BodyReader, OneThatIsNotThereIsLostAlsoWhereOthersAre) {
  World world;
  const Wanted here = world.keep(group_of(0));
  Wanted gone = world.keep(group_of(1));
  world.store.drop(data::ids_of(data::bare_heads(std::vector<GroupId>{GroupId{1}}, 2)));
  EXPECT_EQ(world.reader.fetch_now({here, gone}), std::vector<GroupId>{GroupId{1}});
  EXPECT_EQ(world.reader.take(world.here), std::vector<GroupId>{GroupId{0}});
  gone.store = "tcp://127.0.0.1:1";
  EXPECT_EQ(world.reader.fetch_now({gone}), std::vector<GroupId>{GroupId{1}}) << "nobody is there";
}

}  // namespace
}  // namespace tandem::worker
