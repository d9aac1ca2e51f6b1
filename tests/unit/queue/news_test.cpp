// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/news.h"

#include <gtest/gtest.h>

#include <iostream>

#include "tandem/queue/message.h"

namespace tandem::queue {
namespace {

void grow(data::Sample& sample, int64_t tokens, bool filters, int64_t routes_per_token = 0) {
  for (int64_t t = 0; t < tokens; ++t) {
    const auto at = static_cast<int32_t>(sample.ids.size());
    sample.ids.push_back(at * 7 % 501), sample.logprobs.push_back(-0.25f * static_cast<float>(at % 9)), sample.versions.push_back(at / 100);
    if (filters) sample.kept_mass.push_back(-0.125f);
    for (int64_t r = 0; r < routes_per_token; ++r) sample.routes.push_back(static_cast<int16_t>(at % 5));
  }
}

data::Group group_of(int64_t samples) { return {GroupId{3}, {}, {}, std::vector<data::Sample>(static_cast<size_t>(samples))}; }

void expect_alike(const data::Group& a, const data::Group& b) {
  for (size_t i = 0; i < a.samples.size(); ++i) {
    const data::Sample &x = a.samples[i], &y = b.samples[i];
    EXPECT_TRUE(x.ids == y.ids && x.logprobs == y.logprobs && x.versions == y.versions);
    EXPECT_TRUE(x.kept_mass == y.kept_mass && x.routes == y.routes);
    EXPECT_EQ(x.finish, y.finish);
  }
}

// What a client and a desk do with each beat.
struct Line {
  Told told = {};
  data::Group known = group_of(3);

  int64_t beat(const data::Group& now, bool arrives = true) {
    data::Group news = now;
    const std::vector<Known> from = cut(news, told.known.empty() ? nullptr : &told);
    int64_t tokens = 0;
    for (const data::Sample& sample : news.samples) tokens += std::ssize(sample.ids);
    for (size_t i = 0; i < news.samples.size(); ++i) EXPECT_TRUE(append(known.samples[i], news.samples[i], from[i]));
    if (arrives) told = told_of(now, LeaseNumber{1});
    return tokens;
  }
};

TEST(News, OfASampleThatGrowsAreItsNewTokensAlone) {
  for (const bool filters : {false, true})
    for (const int64_t routes : {0, 4}) {
      Line line;
      data::Group now = group_of(3);
      for (int64_t round = 0; round < 6; ++round) {
        for (size_t i = 0; i < 3; ++i) grow(now.samples[i], static_cast<int64_t>(i) * round, filters, routes);
        EXPECT_EQ(line.beat(now), 3 * round);
        expect_alike(line.known, now);
      }
      now.samples[1].finish = data::FinishReason::kLength;
      EXPECT_EQ(line.beat(now), 0);
      expect_alike(line.known, now);
    }
}

TEST(News, ThatWereLostOnTheWayComeAgain) {
  Line line;
  data::Group now = group_of(3);
  for (int64_t round = 1; round < 6; ++round) {
    grow(now.samples[0], 5, false);
    (void)line.beat(now, round % 2 == 0);
    expect_alike(line.known, now);
  }
}

TEST(News, OfASampleThatBeganAnewAreAllOfIt) {
  for (const int64_t again : {2, 5, 9}) {
    Line line;
    data::Group now = group_of(3);
    grow(now.samples[0], 5, true), grow(now.samples[1], 5, true);
    EXPECT_EQ(line.beat(now), 10);
    now.samples[0] = {}, grow(now.samples[0], again, true);
    now.samples[0].ids[1] = 77;
    EXPECT_EQ(line.beat(now), again);
    expect_alike(line.known, now);
  }
}

TEST(News, BehindTokensThatNobodyHasAreRefused) {
  data::Sample whole, news;
  grow(whole, 3, false), grow(news, 2, false);
  const data::Sample before = whole;
  EXPECT_FALSE(append(whole, news, {4, 0}));
  EXPECT_FALSE(append(whole, news, {3, 1}));
  EXPECT_FALSE(append(whole, news, {-1, 0}));
  EXPECT_EQ(whole.ids, before.ids);
  EXPECT_TRUE(append(whole, news, {3, 0}));
  EXPECT_EQ(std::ssize(whole.ids), 5);
}

TEST(News, BytesOfAllBeatsOverAnAnswerAreLinearInItsTokens) {
  constexpr int64_t kEachBeat = 128;
  std::vector<double> per_token;
  for (const int64_t tokens : {1024, 4096, 16384}) {
    Told told;
    data::Group now = group_of(8);
    int64_t bytes = 0, as_a_whole = 0;
    for (int64_t at = 0; at < tokens; at += kEachBeat) {
      for (data::Sample& sample : now.samples) grow(sample, kEachBeat, false);
      data::Group news = now;
      call::Beat beat{PolicyVersion{0}, {{GroupId{3}, LeaseNumber{1}, true, true}}, {}, {}};
      beat.from = cut(news, told.known.empty() ? nullptr : &told);
      beat.begun.push_back(std::move(news));
      bytes += std::ssize(to_bytes(Call{{}, {}, 1, beat}));
      beat.begun = {now};
      as_a_whole += std::ssize(to_bytes(Call{{}, {}, 1, beat}));
      told = told_of(now, LeaseNumber{1});
    }
    per_token.push_back(static_cast<double>(bytes) / static_cast<double>(8 * tokens));
    std::cout << "8 answers of " << tokens << " tokens, a beat each " << kEachBeat << " tokens: " << bytes << " bytes, " << per_token.back()
              << " a token; with all tokens each time " << as_a_whole << "\n";
  }
  for (const double each : per_token) EXPECT_NEAR(each, per_token.front(), 0.01 * per_token.front());
}

}  // namespace
}  // namespace tandem::queue
