// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/sample_queue.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <optional>
#include <set>
#include <utility>

#include "tandem/base/error.h"

namespace tandem::queue {
namespace {

constexpr int64_t kSize = 2;

data::Group group(int64_t id, int64_t version, bool scored = true) {
  data::Group g{GroupId{id}, {id * 10, "p", {1, 2}, "a", "d"}, PolicyVersion{version}, std::vector<data::Sample>(kSize)};
  for (int64_t i = 0; i < kSize; ++i) {
    data::Sample& s = g.samples[static_cast<size_t>(i)];
    s.id = data::sample_id(g.id, kSize, i);
    s.ids.assign(static_cast<size_t>(id + i), 7);
    s.logprobs.assign(static_cast<size_t>(id + i), -1.5f);
    s.versions.assign(static_cast<size_t>(id + i), version);
    s.scored = scored;
    s.score = 0.5 * static_cast<double>(i);
  }
  return g;
}

struct Fixture : testing::Test {
  Options options{.groups_per_step = 2, .group_size = kSize, .staleness = 1, .lag_policy = "drop"};

  // Groups 0 to 3 start; 1 and 2 end and are taken.
  static void take_first_step(SampleQueue& queue) {
    for (int64_t id : {0, 1, 2, 3}) queue.start(GroupId{id}, PolicyVersion{0});
    queue.put(group(1, 0));
    queue.put(group(2, 0));
    queue.take(StepId{1});
  }
};
using Queue = Fixture;

TEST_F(Queue, ABatchGivenBackIsTakenAgainAsItWas) {
  for (const char* policy : {"drop", "wait"}) {
    options.lag_policy = policy;
    SampleQueue queue(options), untouched(options);
    for (SampleQueue* each : {&queue, &untouched}) {
      for (int64_t id : {0, 1, 2, 3}) each->start(GroupId{id}, PolicyVersion{0});
      for (int64_t id : {0, 1}) each->put(group(id, 0));
      EXPECT_TRUE(each->batch_ready());
    }
    EXPECT_FALSE(queue.give_back()) << "none is taken";
    const data::Batch first = queue.take(StepId{1});
    EXPECT_TRUE(queue.give_back());
    EXPECT_EQ(queue.state(), untouched.state());
    EXPECT_EQ(queue.counters().waited, 0);
    ASSERT_TRUE(queue.batch_ready());
    const data::Batch again = queue.take(StepId{1});
    ASSERT_EQ(again.groups.size(), first.groups.size());
    for (size_t i = 0; i < again.groups.size(); ++i) EXPECT_EQ(again.groups[i].id, first.groups[i].id);
  }
}

TEST_F(Queue, GivesABatchByGroupIdWhateverTheOrderOfArrival) {
  SampleQueue queue(options);
  for (int64_t id : {0, 1, 2}) queue.start(GroupId{id}, PolicyVersion{0});
  queue.put(group(2, 0));
  EXPECT_FALSE(queue.batch_ready());
  queue.put(group(1, 0));
  ASSERT_TRUE(queue.batch_ready());
  const data::Batch batch = queue.take(StepId{1});
  EXPECT_EQ(batch.version, PolicyVersion{0});
  ASSERT_EQ(batch.groups.size(), 2u);
  EXPECT_EQ(batch.groups[0].id, GroupId{1});
  EXPECT_EQ(batch.groups[1].samples[1].ids.size(), 3u);
  EXPECT_EQ(batch.groups[1].prompt.row, 20);
  EXPECT_EQ(queue.num_may_start(), 1) << "taken groups stay outstanding until their update is committed";
  EXPECT_TRUE(queue.commit(StepId{1}, PolicyVersion{1}).all().empty());
  EXPECT_EQ(queue.num_may_start(), 3);
}

TEST_F(Queue, EvictsUnderDropAndRefillsExactly) {
  SampleQueue queue(options);
  take_first_step(queue);
  EXPECT_TRUE(queue.commit(StepId{1}, PolicyVersion{1}).all().empty());
  for (int64_t id : {4, 5}) queue.start(GroupId{id}, PolicyVersion{1});
  EXPECT_EQ(queue.num_may_start(), 0);
  queue.put(group(4, 1));
  queue.put(group(5, 1));
  queue.take(StepId{2});
  EXPECT_EQ(queue.commit(StepId{2}, PolicyVersion{2}).all(), (std::vector<GroupId>{GroupId{0}, GroupId{3}}));
  EXPECT_EQ(queue.num_may_start(), 4);
  queue.put(group(0, 0));
  EXPECT_EQ(queue.counters().late_rows, kSize) << "late samples are counted";
  EXPECT_EQ(queue.counters().dropped, 2);
}

TEST_F(Queue, AGroupWithoutATokenStartsAtTheVersionThatItsRankWillHave) {
  for (const int64_t version : {1, 0}) {  // where weights are taken at once, and where the first token may come before them
    SampleQueue queue(options);
    take_first_step(queue);
    const std::vector<data::Waiting> waiting = {{GroupId{0}, PolicyVersion{version}}};
    EXPECT_TRUE(queue.commit(StepId{1}, PolicyVersion{1}, waiting).all().empty());
    for (int64_t id : {4, 5}) queue.start(GroupId{id}, PolicyVersion{1});
    queue.put(group(4, 1));
    queue.put(group(5, 1));
    queue.take(StepId{2});
    const std::vector<GroupId> dropped = queue.commit(StepId{2}, PolicyVersion{2}).all();
    EXPECT_EQ(std::ranges::count(dropped, GroupId{0}), version == 0) << "its lag could be 2";
  }
}

TEST_F(Queue, AGroupWithoutATokenStartsAtTheNextVersion) {
  SampleQueue queue(options);
  take_first_step(queue);
  const std::vector<data::Waiting> waiting = {{GroupId{0}, PolicyVersion{1}}};  // for a slot; group 3 runs
  EXPECT_TRUE(queue.commit(StepId{1}, PolicyVersion{1}, waiting).all().empty());
  for (int64_t id : {4, 5}) queue.start(GroupId{id}, PolicyVersion{1});
  queue.put(group(4, 1));
  queue.put(group(5, 1));
  queue.take(StepId{2});
  EXPECT_EQ(queue.commit(StepId{2}, PolicyVersion{2}).all(), std::vector<GroupId>{GroupId{3}});
}

TEST_F(Queue, UnderWaitNamesWhomItWaitsFor) {
  options.lag_policy = "wait";
  SampleQueue queue(options);
  take_first_step(queue);
  queue.commit(StepId{1}, PolicyVersion{1});
  for (int64_t id : {4, 5}) queue.start(GroupId{id}, PolicyVersion{1});
  queue.put(group(4, 1));
  queue.put(group(5, 1));
  EXPECT_FALSE(queue.batch_ready());
  EXPECT_EQ(queue.must_wait_for(), (std::vector<GroupId>{GroupId{0}, GroupId{3}}));
  queue.put(group(0, 0));
  EXPECT_EQ(queue.must_wait_for(), (std::vector<GroupId>{GroupId{3}}));
  queue.put(group(3, 0));
  EXPECT_EQ(queue.take(StepId{2}).groups[1].id, GroupId{3});
  EXPECT_TRUE(queue.commit(StepId{2}, PolicyVersion{2}).all().empty());
  EXPECT_EQ(queue.counters().waited, 1);
}

TEST_F(Queue, TakesGroupsWithoutScoresWhereAStageScoresThem) {
  SampleQueue queue(options), later(options, Takes::kUnscored);
  for (int64_t id : {0, 1}) {
    queue.start(GroupId{id}, PolicyVersion{0});
    later.start(GroupId{id}, PolicyVersion{0});
    EXPECT_THROW(queue.put(group(id, 0, /*scored=*/false)), InternalError) << "it would be trained on a score of 0";
    later.put(group(id, 0, /*scored=*/false));
  }
  EXPECT_EQ(queue.num_finished(), 0);
  EXPECT_EQ(later.take(StepId{1}).groups.size(), 2u);
}

// As the batch would have them, whichever finish first.
TEST_F(Queue, NextInLineAreTheEarliestOfThoseThatAreFinished) {
  SampleQueue queue(options);
  for (int64_t id : {0, 1, 2, 3}) queue.start(GroupId{id}, PolicyVersion{0});
  queue.put(group(3, 0));
  EXPECT_EQ(queue.next_in_line(), (std::vector<GroupId>{GroupId{3}}));
  queue.put(group(2, 0));
  queue.put(group(0, 0));
  EXPECT_EQ(queue.next_in_line(), (std::vector<GroupId>{GroupId{0}, GroupId{2}}));
  const data::Batch batch = queue.take(StepId{1});
  EXPECT_EQ(batch.groups[1].id, GroupId{2});
  EXPECT_EQ(queue.next_in_line(), (std::vector<GroupId>{GroupId{3}})) << "taken groups stand in no line";
}

TEST_F(Queue, ContinuesFromItsSavedState) {
  SampleQueue queue(options);
  for (int64_t id : {0, 1, 2, 3}) queue.start(GroupId{id}, PolicyVersion{0});
  for (int64_t id : {0, 1, 3}) queue.put(group(id, 0));
  queue.take(StepId{1});
  EXPECT_THROW(queue.state(), InternalError) << "a batch under way has no place in a checkpoint";
  queue.commit(StepId{1}, PolicyVersion{1});
  const auto bytes = queue.state();

  SampleQueue again(options);
  EXPECT_EQ(again.restore(bytes), (std::vector<GroupId>{GroupId{2}}));
  EXPECT_EQ(again.version(), PolicyVersion{1});
  EXPECT_EQ(again.num_finished(), 1);
  SampleQueue later(options);
  EXPECT_EQ(later.restore(again.state()), (std::vector<GroupId>{GroupId{2}})) << "saved before it was started again";
  EXPECT_EQ(later.counters().started, again.counters().started);
  again.start(GroupId{2}, PolicyVersion{1});
  again.put(group(2, 1));
  const data::Batch batch = again.take(StepId{2});
  EXPECT_EQ(batch.groups[0].id, GroupId{2});
  EXPECT_EQ(batch.groups[1].samples[1].logprobs.size(), 4u);
  EXPECT_EQ(again.counters().started, 4);

  // Rows that lie elsewhere: the state has them, the queue that goes on does not.
  const auto marked = [](data::Group whole) {
    whole.samples[0].text = "x", whole.samples[1].text = "y";
    return whole;
  };
  EXPECT_EQ(queue.finished(), (std::vector<GroupId>{GroupId{3}}));
  const auto whole = queue.state(marked);
  SampleQueue lean(options);
  std::string found;
  lean.restore(whole, [&](data::Group saved) {
    for (data::Sample& s : saved.samples) found += std::exchange(s.text, "");
    return saved;
  });
  EXPECT_EQ(found, "xy");
  lean.start(GroupId{2}, PolicyVersion{1});  // it was running
  EXPECT_EQ(lean.state(), bytes);

  options.staleness = 2;
  SampleQueue other(options);
  EXPECT_THROW(other.restore(bytes), UserError);
  options.staleness = 1;
  SampleQueue third(options);
  EXPECT_THROW(third.restore(std::span(bytes).first(bytes.size() / 2)), PeerError);
}

TEST_F(Queue, ReplacesAGroupWhoseScoresAreAllAlikeAndSaysSo) {
  const auto flat = [](int64_t id) {
    data::Group g = group(id, 0);
    for (data::Sample& s : g.samples) s.score = 1;
    return g;
  };
  SampleQueue queue(options, Takes::kScoredWithSpread);
  for (int64_t id : {0, 1, 2, 3}) queue.start(GroupId{id}, PolicyVersion{0});
  EXPECT_EQ(queue.num_may_start(), 0);
  EXPECT_FALSE(queue.put(flat(1)));
  EXPECT_TRUE(queue.put(group(0, 0)));
  EXPECT_EQ(queue.num_may_start(), 1) << "another may take its place";
  EXPECT_FALSE(queue.batch_ready());
  EXPECT_EQ(queue.num_filtered(), 1);

  SampleQueue again(options, Takes::kScoredWithSpread);  // a checkpoint amid the forming of a batch
  for (const GroupId id : again.restore(queue.state())) {
    EXPECT_FALSE(again.knows(id)) << "it has yet to start again";
    again.start(id, PolicyVersion{0});
    EXPECT_TRUE(again.knows(id));
  }
  EXPECT_EQ(again.num_filtered(), 0) << "a run that ended for want of spread may try again";
  EXPECT_EQ(again.counters().filtered, 1);
  again.start(GroupId{4}, PolicyVersion{0});
  again.put(group(2, 0));
  EXPECT_EQ(again.take(StepId{1}).groups.size(), 2u);
  EXPECT_EQ(again.num_filtered(), 0) << "the next batch has its own count";
  EXPECT_FALSE(again.put(flat(4)));
  EXPECT_EQ(again.commit(StepId{1}, PolicyVersion{1}).all(), (std::vector<GroupId>{GroupId{1}, GroupId{4}})) << "no group leaves unsaid";
  EXPECT_TRUE(again.put(group(3, 0)));
  EXPECT_EQ(again.counters().filtered, 2);
  EXPECT_EQ(again.counters().dropped, 0);

  SampleQueue unfiltered(options);
  for (int64_t id : {0, 1}) unfiltered.start(GroupId{id}, PolicyVersion{0});
  EXPECT_TRUE(unfiltered.put(flat(0)));
  EXPECT_TRUE(unfiltered.put(flat(1)));
  EXPECT_TRUE(unfiltered.batch_ready());
}

TEST_F(Queue, WhatTeachesNothingIsAskedOfShapedScoresAndOfTheGreedyAnswer) {
  const auto kept = [&](std::vector<double> scores, std::optional<double> greedy, const data::Shaping& shaping) {
    SampleQueue queue(options, Takes::kScoredWithSpread, shaping);
    queue.start(GroupId{0}, PolicyVersion{0});
    data::Group g = group(0, 0);
    for (size_t i = 0; i < kSize; ++i) g.samples[i].score = scores[i];
    if (greedy) g.greedy.emplace().score = *greedy;
    return queue.put(std::move(g));
  };
  EXPECT_TRUE(kept({0.5, 0.75}, {}, {}));
  EXPECT_FALSE(kept({0.5, 0.75}, {}, {.high = 0.5})) << "advantages see the same of both";
  EXPECT_FALSE(kept({0.5, 0.75}, {}, {.scale = 10, .low = -5, .high = 5}));
  EXPECT_TRUE(kept({0.5, 0.75}, {}, {.scale = 10, .low = -5, .high = 5.5}));
  EXPECT_TRUE(kept({1, 1}, 0, {})) << "both are better than the greedy answer";
  EXPECT_FALSE(kept({1, 1}, 1, {}));
}

TEST_F(Queue, FiltersABatchThatAStageScoredAndKeepsTheScoresOfTheOthers) {
  const auto scored = [](data::Batch batch, std::set<int64_t> alike) {
    for (data::Group& g : batch.groups)
      for (data::Sample& s : g.samples)
        if (!s.scored) s.scored = true, s.score = alike.contains(value(g.id)) ? 1 : static_cast<double>(value(s.id));
    return batch.groups;
  };
  SampleQueue queue(options, Takes::kUnscored);
  for (int64_t id : {0, 1, 2}) {
    queue.start(GroupId{id}, PolicyVersion{0});
    queue.put(group(id, 0, /*scored=*/false));
  }
  const data::Batch first = queue.take(StepId{1});
  EXPECT_EQ(queue.filter(StepId{1}, scored(first, {1})), std::vector<GroupId>{GroupId{1}});
  EXPECT_EQ(queue.num_filtered(), 1);
  EXPECT_EQ(queue.finished(), (std::vector<GroupId>{GroupId{0}, GroupId{2}})) << "one with a score, one without";

  SampleQueue again(options, Takes::kUnscored);  // a checkpoint between two rounds
  EXPECT_TRUE(again.restore(queue.state()).empty());
  EXPECT_EQ(again.counters().filtered, 1);
  for (SampleQueue* each : {&queue, &again}) {
    const data::Batch second = each->take(StepId{1});
    EXPECT_TRUE(second.groups.at(0).samples[0].scored);
    EXPECT_EQ(second.groups[0].samples[1].score, 1);
    EXPECT_FALSE(second.groups.at(1).samples[0].scored);
    EXPECT_TRUE(each->filter(StepId{1}, scored(second, {})).empty());
    EXPECT_EQ(each->num_filtered(), 0) << "the batch is complete";
    EXPECT_EQ(each->commit(StepId{1}, PolicyVersion{1}).all(), std::vector<GroupId>{GroupId{1}}) << "no group leaves unsaid";
    EXPECT_EQ(each->counters().trained, 2);
    EXPECT_EQ(each->num_outstanding(), 0);
  }
  SampleQueue beside(options, Takes::kScoredWithSpread);
  EXPECT_THROW(beside.filter(StepId{1}, {}), InternalError);
  EXPECT_THROW(queue.filter(StepId{2}, {}), InternalError) << "nothing was taken";
}

TEST_F(Queue, RefusesMisuse) {
  SampleQueue queue(options);
  EXPECT_THROW(queue.put(group(5, 0)), InternalError) << "never started";
  EXPECT_THROW(queue.start(GroupId{0}, PolicyVersion{1}), InternalError) << "a version that does not exist yet";
  queue.start(GroupId{0}, PolicyVersion{0});
  EXPECT_THROW(queue.start(GroupId{0}, PolicyVersion{0}), InternalError);
  data::Group half = group(0, 0), turned = group(0, 0);
  half.samples.pop_back();
  std::swap(turned.samples[0], turned.samples[1]);
  EXPECT_THROW(queue.put(half), InternalError);
  EXPECT_THROW(queue.put(turned), InternalError);
  queue.put(group(0, 0));
  EXPECT_THROW(queue.put(group(0, 0)), InternalError) << "twice";
  EXPECT_THROW(queue.take(StepId{1}), InternalError) << "one group is no batch";
  EXPECT_THROW(queue.commit(StepId{1}, PolicyVersion{1}), InternalError);
  options.staleness = -1;
  EXPECT_THROW(SampleQueue{options}, UserError);
}

}  // namespace
}  // namespace tandem::queue
