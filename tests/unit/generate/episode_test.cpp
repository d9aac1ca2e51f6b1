// SPDX-License-Identifier: Apache-2.0
#include "tandem/generate/episode.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "../../temporary_folder.h"
#include "../../tiny_model.h"
#include "tandem/base/error.h"
#include "tandem/generate/generator.h"
#include "tandem/text/tokenizer_files.h"

namespace tandem::generate {
namespace {

constexpr int64_t kSamples = 3, kMost = 24, kTurnTokens = 5;

/// Says the number of tokens that it heard, as ids, for `turns` turns; the reward is of the last.
class Counting : public Episode {
 public:
  explicit Counting(int64_t turns) : turns_(turns) {}
  Turn next(const Spoken& spoken, Budget&) override {
    EXPECT_EQ(spoken.turn, heard_++);
    if (heard_ == turns_) return {.reward = 0.5 * static_cast<double>(heard_), .is_done = true};
    return {.ids = {static_cast<int32_t>(10 + spoken.ids.size()), 7}};
  }

 private:
  const int64_t turns_;
  int64_t heard_ = 0;
};

class Failing : public Episode {
 public:
  Turn next(const Spoken&, Budget&) override { throw PeerError("it broke"); }
};

text::Tokenizer tokenizer() {
  const test::TemporaryFolder folder("episode");
  text::write_char_tokenizer(folder.path(), "0123456789+-*/= .,?abcdefghijklmnopqrstuvwxyzABCDEFGHIJ", {"<pad>", "<eos>"});
  return text::Tokenizer::load(folder.path());
}

struct Case {
  explicit Case(MakeEpisode make, int64_t attempts = 3) {
    const rollout::EpisodeOptions options{.environment = "a test", .workers = 2, .timeout_s = 20, .attempts = attempts};
    setup.environment = std::make_shared<Environment>(Environment{std::move(make), options, std::make_shared<monitor::Notices>()});
    engine.switch_weights(model.parameters, data::PolicyVersion{4});
  }

  text::Tokenizer tokens = tokenizer();
  test::TinyModel model;
  rollout::Engine engine{{.max_running = 6, .kv_cache_mib = 16}, {model.decoder, model.arena, model.decoder.config().vocab_size, 100}};
  // A turn ends with its fifth token.
  GenerateSetup setup{.sampling = {.temperature = 0, .max_new_tokens = kMost, .ignore_eos = true},
                      .group_size = kSamples,
                      .seed = 3,
                      .ends = ResponseEnds({}, {}, model.decoder.config(), &tokens),
                      .has_episodes = true};

  std::map<data::GroupId, data::Group> generated(int64_t groups, bool has_thread) {
    std::optional<OwnThread> thread;
    if (has_thread) thread.emplace();
    Generator generator(setup, engine, {}, std::move(thread));
    const std::unique_ptr<comm::Group> alone = comm::single();
    for (int64_t i = 0; i < groups; ++i) generator.admit(data::GroupId{i}, {.ids = {5, 9, static_cast<int32_t>(20 + i)}});
    std::map<data::GroupId, data::Group> all;
    const Deadline deadline = Deadline::after_s(60);
    while (generator.running() && !deadline.passed()) {
      if (!has_thread) (void)generator.step();
      for (data::Group& group : generator.take_ended(INT64_MAX, has_thread ? alone.get() : nullptr)) all[group.id] = std::move(group);
      if (generator.fault()) std::rethrow_exception(generator.fault());
    }
    return all;
  }
};

// Ends each turn with its fifth token, whatever it is.
rollout::MakeTokenListener five_tokens() {
  return [] { return [left = kTurnTokens](int32_t) mutable { return --left > 0; }; };
}

MakeEpisode counting(int64_t turns) {
  return [turns](const EpisodeStart&, Budget&) { return std::make_unique<Counting>(turns); };
}

TEST(Episode, EachTurnGoesOnBehindAllThatWasSaidAndIsMarked) {
  Case c(counting(3));
  c.setup.make_listener = five_tokens();
  const auto groups = c.generated(2, false);
  ASSERT_EQ(groups.size(), 2u);
  for (const auto& [id, group] : groups)
    for (const data::Sample& s : group.samples) {
      ASSERT_EQ(s.ids.size(), 3 * kTurnTokens + 4);
      const std::vector<uint8_t> marks = {1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1};
      EXPECT_EQ(s.trainable, marks);
      EXPECT_EQ(s.ids[5], 15);
      EXPECT_EQ(s.ids[6], 7);
      for (size_t t = 0; t < s.ids.size(); ++t) {
        EXPECT_EQ(s.versions[t], 4);
        EXPECT_EQ(s.logprobs[t] == 0, !marks[t]);
      }
      EXPECT_TRUE(s.scored);
      EXPECT_EQ(s.score, 1.5);
      // What a single request draws behind the same tokens.
      rollout::Request request{.prompt = group.prompt.ids, .sampling = c.setup.sampling};
      request.prompt.insert(request.prompt.end(), s.ids.begin(), s.ids.begin() + 14);
      request.sampling.max_new_tokens = 5;
      c.engine.submit(std::move(request));
      while (c.engine.running()) c.engine.step();
      const std::vector<rollout::Completion> alone = c.engine.completed();
      EXPECT_TRUE(std::ranges::equal(alone.front().sample.ids, std::span(s.ids).subspan(14)));
    }
}

TEST(Episode, AThreadOfItsOwnGivesTheSame) {
  Case c(counting(3));
  c.setup.make_listener = five_tokens();
  const auto stepped = c.generated(3, false), drawn = c.generated(3, true);
  ASSERT_EQ(drawn.size(), 3u);
  for (const auto& [id, group] : stepped)
    for (size_t i = 0; i < group.samples.size(); ++i) EXPECT_EQ(drawn.at(id).samples[i].ids, group.samples[i].ids);
}

TEST(Episode, OneThatFindsNoRoomEndsAtTheLengthLimit) {
  Case c(counting(100));
  c.setup.make_listener = five_tokens();
  for (const auto& [id, group] : c.generated(1, false))
    for (const data::Sample& s : group.samples) {
      EXPECT_EQ(s.finish, data::FinishReason::kLength);
      EXPECT_LE(std::ssize(s.ids), kMost);
      EXPECT_FALSE(s.scored);
    }
}

TEST(Episode, OneThatFailsBeginsAnewAndIsCounted) {
  std::atomic<int> begun = 0;
  std::set<uint64_t> seeds;
  std::mutex mutex;
  Case c([&](const EpisodeStart& start, Budget&) -> std::unique_ptr<Episode> {
    std::lock_guard lock(mutex);
    seeds.insert(start.seed);
    if (++begun <= 2) return std::make_unique<Failing>();
    return std::make_unique<Counting>(2);
  });
  c.setup.make_listener = five_tokens();
  const auto groups = c.generated(1, false);
  ASSERT_EQ(groups.size(), 1u);
  double failed = 0;
  for (const data::Sample& s : groups.begin()->second.samples) {
    EXPECT_EQ(s.ids.size(), 2 * kTurnTokens + 2);
    failed += std::ranges::find(s.parts, "failed_episodes", [](const auto& part) { return part.first; })->second;
  }
  EXPECT_EQ(failed, 2);
  EXPECT_EQ(seeds.size(), 5u);  // one that begins anew has another
}

TEST(Episode, OneThatAlwaysFailsEndsWithItsName) {
  Case c([](const EpisodeStart&, Budget&) { return std::make_unique<Failing>(); });
  c.setup.make_listener = five_tokens();
  try {
    c.generated(1, false);
    FAIL() << "nothing was thrown";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("it broke; it has failed 3 times"), std::string::npos) << e.what();
  }
}

TEST(Episode, OneThatWasLostWithItsProcessIsRepeated) {
  struct Gone : Counting {
    explicit Gone(int64_t turns, std::atomic<int>& left) : Counting(turns), left(left) {}
    Turn next(const Spoken& spoken, Budget& budget) override {
      if (spoken.turn == 2 && left-- > 0) throw EpisodeGone("its process ended");
      return Counting::next(spoken, budget);
    }
    std::atomic<int>& left;
  };
  std::atomic<int> left = 2, none = 0;
  Case lost([&](const EpisodeStart&, Budget&) { return std::make_unique<Gone>(4, left); });
  Case whole([&](const EpisodeStart&, Budget&) { return std::make_unique<Gone>(4, none); });
  for (Case* c : {&lost, &whole}) c->setup.make_listener = five_tokens();
  const auto a = lost.generated(1, false), b = whole.generated(1, false);
  ASSERT_EQ(a.size(), 1u);
  for (size_t i = 0; i < kSamples; ++i) {
    const data::Sample& sample = a.begin()->second.samples[i];
    EXPECT_EQ(sample.ids, b.begin()->second.samples[i].ids);
    EXPECT_EQ(sample.parts[1].second, 0) << "it has not failed";
  }
  EXPECT_LE(left, 0);
}

TEST(Episode, AgainAsksTwiceAndPaysForTwoAnswers) {
  const auto environment = make_environment({.environment = "again"}, {});
  const data::Prompt prompt;
  const auto score_of = [&](const char* first, const char* second) {
    Budget budget{.left_s = 1};
    const auto episode = environment->make({.prompt = prompt}, budget);
    const Turn asked = episode->next({.text = first, .turn = 0}, budget);
    EXPECT_EQ(asked.text, "again: ");
    EXPECT_FALSE(asked.is_done || asked.reward);
    const Turn last = episode->next({.text = second, .turn = 1}, budget);
    EXPECT_TRUE(last.is_done);
    return last.reward.value_or(-1);
  };
  EXPECT_EQ(score_of("3", "7"), 1);
  EXPECT_EQ(score_of("3", "3"), 0);
}

TEST(Episode, TurnsTravelAsText) {
  const std::vector<GroupTurn> turns = {{data::GroupId{7}, {{.kind = SampleTurn::Kind::kGoesOn, .ids = {3, 4}},
                                                            {.reward = 0.1, .turns = 2, .failures = 1}, {.is_full = true}}}};
  const std::vector<GroupTurn> again = turns_of(to_text(turns));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].group, data::GroupId{7});
  EXPECT_EQ(again[0].samples[0].ids, (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(again[0].samples[1].reward, 0.1);
  EXPECT_EQ(again[0].samples[1].failures, 1);
  EXPECT_TRUE(again[0].samples[2].is_full);
  EXPECT_THROW(turns_of("[[1]]"), PeerError);
}

}  // namespace
}  // namespace tandem::generate
