// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/group/stream.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "../../tiny_model.h"
#include "tandem/base/error.h"
#include "tandem/comm/launch.h"

namespace tandem::rollout {
namespace {

constexpr double kLong_s = 60;

Options options() {
  Options o;
  o.max_running = 6;
  o.kv_cache_mib = 16;
  return o;
}

GroupRequest request_of(int64_t group, int64_t samples, int64_t new_tokens) {
  GroupRequest r;
  r.group.id = data::GroupId{group};
  for (int64_t i = 0; i < 5; ++i) r.group.prompt.ids.push_back(static_cast<int32_t>((7 * group + 5 * i + 3) % 60 + 2));
  r.num_samples = samples;
  r.first_sample = group * 100;
  r.sampling.max_new_tokens = new_tokens;
  r.seed = 5;
  return r;
}

model::ModelConfig with_long_context() {
  model::ModelConfig config = test::tiny_config();
  config.max_positions = 2048;
  return config;
}

struct StreamCase {
  test::TinyModel model{with_long_context(), at::kFloat, true};
  Engine engine{options(), {model.decoder, model.arena, model.decoder.config().vocab_size, 2000}};
};

using Groups = std::map<data::GroupId, data::Group>;

void add(Groups& all, std::vector<data::Group> groups) {
  for (data::Group& group : groups) all[group.id] = std::move(group);
}

// Until so many have ended.
void collect(Stream& stream, Groups& all, size_t count) {
  const Deadline deadline = Deadline::after_s(kLong_s);
  while (all.size() < count && !deadline.passed()) {
    (void)stream.wait_finished(deadline);
    add(all, stream.take_finished());
  }
  ASSERT_EQ(all.size(), count);
}

// What a stream may be told, in a form that an engine can be told, too.
struct Told {
  enum What { kAdmit, kCancel, kSwitch } what;
  int64_t number;  // group or version
  int64_t samples = 0, tokens = 0;
};

std::vector<Told> random_story(std::mt19937& random) {
  std::vector<Told> story = {{Told::kSwitch, 0}};
  int64_t next_group = 0, version = 0;
  for (int i = 0; i < 40; ++i) {
    const auto dice = random() % 10;
    const auto below = [&](unsigned bound) { return static_cast<int64_t>(random() % bound); };
    if (dice < 7) story.push_back({Told::kAdmit, next_group++, 1 + below(3), 1 + below(60)});
    else if (dice < 9) story.push_back({Told::kSwitch, ++version});
    else if (next_group > 0) story.push_back({Told::kCancel, static_cast<int64_t>(random() % static_cast<uint64_t>(next_group))});
  }
  return story;
}

// The versions have values of their own, so that a token shows which drew it.
struct Versions {
  explicit Versions(StreamCase& c) : odd(c.model.values.mul(1.25)), parameters(model::make_parameters(c.model.table, odd, at::Tensor())) {}
  const model::ModelParameters& of(StreamCase& c, int64_t version) { return version % 2 == 0 ? c.model.parameters : parameters; }
  at::Tensor odd;
  model::ModelParameters parameters;
};

// With random pauses between.
void tell(Stream& stream, StreamCase& c, Versions& versions, const std::vector<Told>& story, std::mt19937& random) {
  for (const Told& told : story) {
    if (told.what == Told::kAdmit) stream.admit(request_of(told.number, told.samples, told.tokens));
    if (told.what == Told::kSwitch) stream.switch_weights(versions.of(c, told.number), data::PolicyVersion{told.number});
    if (told.what == Told::kCancel) stream.cancel(data::GroupId{told.number});
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
  }
}

void collect_all(Stream& stream, Groups& all) {
  const Deadline deadline = Deadline::after_s(kLong_s);
  while (stream.wait_finished(deadline)) add(all, stream.take_finished());
  ASSERT_FALSE(deadline.passed());
}

TEST(Stream, GivesWhatAnEngineGivesThatIsToldTheSameBeforeTheSameTokens) {
  std::mt19937 random(11);
  int64_t num_switched_within = 0;
  for (int round = 0; round < 3 || (num_switched_within == 0 && round < 30); ++round) {  // on a busy machine it may all be told at once
    const std::vector<Told> story = random_story(random);
    Groups streamed, stepped;
    std::vector<data::Effect> effects;
    {
      StreamCase c;
      Versions versions(c);
      Stream stream(c.engine);
      tell(stream, c, versions, story, random);
      collect_all(stream, streamed);
      effects = stream.take_effects();
    }
    ASSERT_EQ(effects.size(), story.size());
    StreamCase c;
    Versions versions(c);
    GroupAssembly groups(c.engine);
    int64_t steps = 0;
    const auto step = [&] {
      c.engine.step();
      ++steps;
      add(stepped, groups.finished());
    };
    std::vector<data::GroupId> cancelled;
    for (size_t i = 0; i < story.size(); ++i) {
      while (steps < effects[i].step) step();
      const Told& told = story[i];
      if (told.what == Told::kAdmit) groups.admit(request_of(told.number, told.samples, told.tokens));
      if (told.what == Told::kSwitch) c.engine.switch_weights(versions.of(c, told.number), data::PolicyVersion{told.number});
      if (told.what == Told::kCancel) groups.cancel(data::GroupId{told.number});
      if (told.what == Told::kCancel) cancelled.push_back(data::GroupId{told.number});
    }
    while (c.engine.running()) step();
    for (const data::GroupId id : cancelled)  // one that had ended may have been taken before
      if (!streamed.contains(id)) stepped.erase(id);
    ASSERT_EQ(streamed.size(), stepped.size());
    for (const auto& [id, group] : streamed) {
      const data::Group& other = stepped.at(id);
      EXPECT_EQ(group.version, other.version);
      for (size_t s = 0; s < group.samples.size(); ++s) {
        EXPECT_EQ(group.samples[s].ids, other.samples[s].ids);
        EXPECT_EQ(group.samples[s].logprobs, other.samples[s].logprobs);
        EXPECT_EQ(group.samples[s].versions, other.samples[s].versions);
        num_switched_within += group.samples[s].versions.front() != group.samples[s].versions.back();
      }
    }
  }
  EXPECT_GT(num_switched_within, 0) << "no switch fell into a response";
}

TEST(Stream, GivesTheSameAgainWhenItFollowsWhatTookEffectBefore) {
  std::mt19937 random(5);
  std::vector<Told> story = random_story(random);
  std::erase_if(story, [](const Told& told) { return told.what == Told::kCancel; });  // what had ended is taken or not, as it happens
  Groups first, second;
  std::vector<data::Effect> effects, again;
  const auto run = [&](Groups& all, std::optional<std::vector<data::Effect>> followed) {
    StreamCase c;
    Versions versions(c);
    Stream stream(c.engine, {}, std::move(followed));
    tell(stream, c, versions, story, random);
    stream.pause();  // no part of what is followed
    stream.resume();
    collect_all(stream, all);
    return stream.take_effects();
  };
  effects = run(first, {});
  again = run(second, effects);
  EXPECT_EQ(effects, again);
  ASSERT_EQ(first.size(), second.size());
  for (const auto& [id, group] : first)
    for (size_t s = 0; s < group.samples.size(); ++s) {
      EXPECT_EQ(group.samples[s].ids, second.at(id).samples[s].ids);
      EXPECT_EQ(group.samples[s].logprobs, second.at(id).samples[s].logprobs);
      EXPECT_EQ(group.samples[s].versions, second.at(id).samples[s].versions);
    }
}

TEST(Stream, RefusesToFollowMoreTokensThanThereAre) {
  StreamCase c;
  Stream stream(c.engine, {}, std::vector<data::Effect>{{data::Effect::Kind::kSwitch, 0}, {data::Effect::Kind::kAdmit, 0},
                                                        {data::Effect::Kind::kSwitch, 500}});
  stream.switch_weights(c.model.parameters, data::PolicyVersion{0});
  stream.admit(request_of(0, 1, 3));
  stream.switch_weights(c.model.parameters, data::PolicyVersion{1});
  EXPECT_THROW(stream.wait_switched(), UserError);
}

TEST(Stream, SaysThatItAwaitsWhatItIsToFollow) {
  StreamCase c;
  Stream stream(c.engine, {}, std::vector<data::Effect>{{data::Effect::Kind::kSwitch, 0}, {data::Effect::Kind::kAdmit, 0},
                                                        {data::Effect::Kind::kSwitch, 10}});
  stream.switch_weights(c.model.parameters, data::PolicyVersion{0});
  EXPECT_FALSE(stream.state().awaits && stream.state().steps > 0);
  stream.admit(request_of(0, 1, 100));
  const Deadline deadline = Deadline::after_s(kLong_s);
  while (!(stream.state().awaits && stream.state().steps == 10) && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(stream.state().steps, 10) << "the next token is of weights that have not come";
  EXPECT_TRUE(stream.state().awaits);
  stream.switch_weights(c.model.parameters, data::PolicyVersion{1});
  Groups all;
  collect(stream, all, 1);
}

TEST(Stream, RefusesToFollowWhatItIsNotTold) {
  StreamCase c;
  Stream stream(c.engine, {}, std::vector<data::Effect>{{data::Effect::Kind::kSwitch, 0}, {data::Effect::Kind::kSwitch, 0}});
  stream.switch_weights(c.model.parameters, data::PolicyVersion{0});
  stream.admit(request_of(0, 1, 3));
  const Deadline deadline = Deadline::after_s(kLong_s);
  EXPECT_THROW({
    while (!deadline.passed()) (void)stream.wait_finished(Deadline::after_s(0.01));
  }, UserError);
}

// Of ranks that share experts each has groups of its own.
TEST(Stream, ARankThatIsToldLessHoldsUpNoOtherThatSharesItsExperts) {
  std::vector<std::vector<data::Effect>> effects(2);
  std::vector<Groups> all(2);
  comm::run_local(2, kLong_s, [&](comm::Group& world) {
    const auto me = static_cast<size_t>(world.rank());
    const std::unique_ptr<comm::Group> experts = world.split(0, "experts");
    StreamCase c;
    Stream stream(c.engine, {{}, experts.get()});
    std::mt19937 random(world.rank());
    stream.switch_weights(c.model.parameters, data::PolicyVersion{0});
    for (int64_t g = 0; g < 12; ++g) {
      if (g % 3 == 0 || me == 0) stream.admit(request_of(2 * g + world.rank(), 2, 5 + 13 * g));
      if (g % 4 == 3) stream.switch_weights(c.model.parameters, data::PolicyVersion{g});
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
    }
    collect(stream, all[me], me == 0 ? 12 : 4);
    stream.pause();
    effects[me] = stream.take_effects();
    world.barrier();
  });
  for (std::vector<data::Effect>& each : effects)
    std::erase_if(each, [](const data::Effect& e) { return e.kind != data::Effect::Kind::kSwitch; });
  for (const std::vector<data::Effect>& each : effects) EXPECT_EQ(each.size(), 4u);
}

// Tokens move, not keys and values: those are computed anew where the group goes on.
TEST(Stream, AGroupThatMovesGoesOnAsIfItHadStayed) {
  Groups stayed, moved;
  const auto admit_all = [](Stream& stream) {
    for (int64_t g = 0; g < 4; ++g) stream.admit(request_of(g, 3, 40 + 20 * g));
  };
  {
    StreamCase c;
    Stream stream(c.engine);
    stream.switch_weights(c.model.parameters, data::PolicyVersion{0});
    admit_all(stream);
    collect(stream, stayed, 4);
  }
  StreamCase from, to;
  Stream first(from.engine), second(to.engine);
  first.switch_weights(from.model.parameters, data::PolicyVersion{0});
  second.switch_weights(to.model.parameters, data::PolicyVersion{1});
  first.pause();  // so that all begin before the same token
  admit_all(first);
  first.resume();
  EXPECT_THROW(first.take_out({}), InternalError) << "its thread has the engine";
  const int64_t told = first.state().steps;  // it steps while it is told
  while (first.state().steps < told + 30) std::this_thread::yield();
  first.pause(data::Effect::Kind::kStand);
  const std::map<data::GroupId, int64_t> tokens = first.state().unfinished_tokens;
  EXPECT_GT(tokens.at(data::GroupId{3}), 3 * 5);
  const std::vector<data::Group> copies = first.take_out({data::GroupId{1}, data::GroupId{3}, data::GroupId{77}}, true);
  std::vector<data::Group> taken = first.take_out({data::GroupId{1}, data::GroupId{3}, data::GroupId{77}});
  ASSERT_EQ(taken.size(), 2u);
  ASSERT_EQ(copies.size(), 2u);
  for (size_t g = 0; g < 2; ++g)
    for (size_t s = 0; s < taken[g].samples.size(); ++s) {
      EXPECT_EQ(copies[g].samples[s].ids, taken[g].samples[s].ids);
      EXPECT_EQ(copies[g].samples[s].finish, taken[g].samples[s].finish);
    }
  EXPECT_EQ(first.state().unfinished_tokens.size(), tokens.size()) << "until it goes on";
  first.resume();
  for (data::Group& group : taken) {
    GroupRequest request = request_of(value(group.id), 3, 40 + 20 * value(group.id));
    request.group.samples = std::move(group.samples);
    second.admit(std::move(request));
  }
  collect(first, moved, 2);
  collect(second, moved, 4);
  bool is_mixed = false;
  for (const auto& [id, group] : stayed)
    for (size_t s = 0; s < group.samples.size(); ++s) {
      const data::Sample& other = moved.at(id).samples[s];
      EXPECT_EQ(group.samples[s].ids, other.ids);
      EXPECT_EQ(group.samples[s].logprobs, other.logprobs);
      EXPECT_EQ(other.versions.size(), other.ids.size());
      is_mixed |= other.versions.front() == 0 && other.versions.back() == 1;
    }
  EXPECT_TRUE(is_mixed) << "a response begins with the tokens of one engine and ends with those of the other";
  EXPECT_EQ(first.take_effects().back().kind, data::Effect::Kind::kStand);
}

TEST(Stream, StandsStillWhileItIsPaused) {
  StreamCase c;
  Stream stream(c.engine);
  stream.switch_weights(c.model.parameters, data::PolicyVersion{0});
  stream.admit(request_of(0, 2, 1500));
  while (stream.state().steps < 5) std::this_thread::yield();
  stream.pause();
  const StreamState before = stream.state();
  EXPECT_TRUE(c.engine.running());
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(stream.state().steps, before.steps);
  EXPECT_EQ(c.engine.counts().drawn, before.counts.drawn);
  stream.resume();
  Groups all;
  collect(stream, all, 1);
  EXPECT_EQ(all.begin()->second.samples[0].ids.size(), 1500u);
  EXPECT_THROW(stream.resume(), InternalError);
}

TEST(Stream, GivesNoGroupThatItIsToldToCancel) {
  StreamCase c;
  Stream stream(c.engine);
  stream.switch_weights(c.model.parameters, data::PolicyVersion{0});
  stream.admit(request_of(0, 1, 3));
  ASSERT_TRUE(stream.wait_finished(Deadline::after_s(kLong_s)));
  stream.pause();
  stream.cancel(data::GroupId{0});  // which is not in effect while it stands still
  EXPECT_TRUE(stream.take_finished().empty());
  stream.resume();
}

TEST(Stream, SaysWhichGroupsHaveNoTokenAndWhichVersionItHas) {
  StreamCase c;
  Stream stream(c.engine);
  EXPECT_FALSE(stream.state().version);
  stream.switch_weights(c.model.parameters, data::PolicyVersion{3});
  for (int64_t g = 0; g < 20; ++g) stream.admit(request_of(g, 3, 800));  // sixty for six slots
  while (stream.state().steps < 20) std::this_thread::yield();
  stream.pause();
  const StreamState state = stream.state();
  EXPECT_EQ(state.version, data::PolicyVersion{3});
  ASSERT_FALSE(state.without_token.empty());
  stream.resume();
  stream.switch_weights(c.model.parameters, data::PolicyVersion{4});
  const data::GroupId first = state.without_token.front();
  for (int64_t g = 0; g < 20; ++g)
    if (data::GroupId{g} != first) stream.cancel(data::GroupId{g});
  Groups all;
  collect(stream, all, 1);
  EXPECT_GE(all.at(first).version, data::PolicyVersion{3});
}

TEST(Stream, RestsWithoutWorkAndCountsIt) {
  StreamCase c;
  Stream stream(c.engine);
  stream.switch_weights(c.model.parameters, data::PolicyVersion{0});
  while (!stream.state().version) std::this_thread::yield();  // on a device graphs are captured first
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_FALSE(stream.wait_finished(Deadline::after_s(kLong_s)));
  stream.admit(request_of(0, 1, 3));
  Groups all;
  collect(stream, all, 1);
  EXPECT_GE(stream.state().idle_s, 0.03);
}

TEST(Stream, WhatAnEngineRefusesIsToldByTheNextCall) {
  StreamCase c;
  Stream stream(c.engine);
  stream.switch_weights(c.model.parameters, data::PolicyVersion{0});
  stream.admit(request_of(0, 1, 1 << 20));
  EXPECT_THROW({
    (void)stream.wait_finished(Deadline::after_s(kLong_s));
    (void)stream.take_finished();
  }, UserError);
  EXPECT_THROW(stream.admit(request_of(1, 1, 2)), UserError);
}

TEST(Stream, PeersDoWhatTheyAreToldBeforeTheSameToken) {
  std::vector<std::vector<data::Effect>> effects(2);
  std::vector<Groups> all(2);
  comm::run_local(2, kLong_s, [&](comm::Group& world) {
    const auto me = static_cast<size_t>(world.rank());
    const std::unique_ptr<comm::Group> peers = world.split(0, "peers");
    StreamCase c;
    Stream stream(c.engine, {{peers.get()}});
    std::mt19937 random(world.rank());
    stream.switch_weights(c.model.parameters, data::PolicyVersion{0});
    for (int64_t g = 0; g < 12; ++g) {
      stream.admit(request_of(g, 2, 5 + 13 * g));
      if (g % 5 == 4) stream.switch_weights(c.model.parameters, data::PolicyVersion{g});
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));  // one hears of it long before the other
      // The later ones are told while it generates, however busy the machine is.
      const Deadline deadline = Deadline::after_s(kLong_s);
      while (g == 5 && stream.state().steps == 0 && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    collect(stream, all[me], 12);
    effects[me] = stream.take_effects();
    stream.pause();
    world.barrier();
  });
  EXPECT_EQ(effects[0], effects[1]);
  EXPECT_GT(effects[0].back().step, 0);
  for (const auto& [id, group] : all[0])
    for (size_t s = 0; s < group.samples.size(); ++s) EXPECT_EQ(group.samples[s].versions, all[1].at(id).samples[s].versions);
}

// One of two ranks that draw the same tokens is told nothing: the other cannot go before it.
TEST(Stream, AnOwnerWaitsForItsPeersUntilTheDeadlineAlone) {
  comm::run_local(2, kLong_s, [&](comm::Group& world) {
    const bool is_first = world.rank() == 0;
    const std::unique_ptr<comm::Group> peers = world.split(0, "peers");
    StreamCase c;
    Stream stream(c.engine, {{peers.get()}, nullptr, is_first ? 0.1 : kLong_s});
    const auto refused = [&](const char* what, const std::function<void()>& wait) {
      try {
        wait();
        ADD_FAILURE() << what << " came though the other was not told";
      } catch (const PeerError& e) {
        EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
        EXPECT_NE(std::string(e.what()).find("after 0.1 s (parallel.deadline_s)"), std::string::npos) << e.what();
      }
    };
    if (is_first) {
      stream.switch_weights(c.model.parameters, data::PolicyVersion{3});
      refused("has not taken the weights", [&] { stream.wait_switched(); });
      EXPECT_FALSE(stream.state().version);
    }
    world.barrier();
    if (!is_first) {
      stream.switch_weights(c.model.parameters, data::PolicyVersion{3});
      stream.wait_switched();
    }
    const Deadline deadline = Deadline::after_s(kLong_s);
    while (!stream.state().version && !deadline.passed()) std::this_thread::yield();
    EXPECT_EQ(stream.state().version, data::PolicyVersion{3}) << "a wait that was given up takes nothing back";
    if (is_first) refused("does not stand still", [&] { stream.pause(); });
    world.barrier();
    if (!is_first) stream.pause();
    world.barrier();
  });
}

TEST(Stream, MayGoWhileItGenerates) {
  StreamCase c;
  Stream stream(c.engine);
  stream.switch_weights(c.model.parameters, data::PolicyVersion{0});
  stream.admit(request_of(0, 4, 1900));
  while (stream.state().steps < 2) std::this_thread::yield();
}

}  // namespace
}  // namespace tandem::rollout
