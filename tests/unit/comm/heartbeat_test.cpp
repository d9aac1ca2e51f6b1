// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/backend/heartbeat.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <sstream>

namespace tandem::comm {
namespace {

bool comes_true(const std::function<bool()>& test, double within_s) {
  for (const Deadline deadline = Deadline::after_s(within_s); !deadline.passed();) {
    if (test()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

/// Ranks 0 and 1 with a heartbeat, and rank 2, of which a test makes what it likes.
struct Three {
  Three() {
    Listener listener;
    std::vector<Link> of_one(3);
    std::thread others([&] {
      of_one[0] = accept_invitation(listener.invitation(), 1, 10);
      two = accept_invitation(listener.invitation(), 2, 10);
    });
    std::vector<Link> of_zero = listener.accept_all(3, 10);
    others.join();
    zero = std::make_unique<Heartbeat>(0, std::move(of_zero), hooks(0));
    one = std::make_unique<Heartbeat>(1, std::move(of_one), hooks(1));
  }
  Heartbeat::Hooks hooks(size_t rank) {
    return {[this, rank](int died) { deaths[rank] = died; }, [this, rank] { return is_stuck[rank].load(); }, [](Heartbeat&) {}};
  }
  bool both(const std::function<bool(Heartbeat&)>& test) { return test(*zero) && test(*one); }

  std::array<std::atomic<int>, 2> deaths{-1, -1};
  std::array<std::atomic<bool>, 2> is_stuck{false, false};
  Link two;
  std::unique_ptr<Heartbeat> zero, one;
};

const auto loses_two = [](Heartbeat& h) { return h.lost() == std::vector<int>{2}; };
const auto loses_nobody = [](Heartbeat& h) { return h.lost().empty(); };

TEST(Heartbeat, ADeadRankIsKnownToAllAtOnce) {
  Three t;
  EXPECT_TRUE(t.both(loses_nobody));
  t.two.close();
  EXPECT_TRUE(comes_true([&] { return t.deaths[0] == 2 && t.deaths[1] == 2; }, 1));
  EXPECT_TRUE(t.both(loses_two));
}

TEST(Heartbeat, AStoppedRankIsSilentUntilItBeatsAgain) {
  Three t;
  EXPECT_TRUE(comes_true([&] { return t.both(loses_two); }, 2));
  t.two.send({News::kBeat, 2});
  EXPECT_TRUE(comes_true([&] { return t.both(loses_nobody); }, 1));
  EXPECT_EQ(t.deaths[0], -1) << "a rank that is stopped may go on";
}

TEST(Heartbeat, ARankThatBeatsIsNotLost) {
  Three t;
  const Deadline deadline = Deadline::after_s(2 * Heartbeat::kSilent_s);
  while (!deadline.passed()) {
    t.two.send({News::kBeat, 2});
    std::this_thread::sleep_for(duration_of_s(Heartbeat::kBeat_s));
    EXPECT_TRUE(t.both(loses_nobody));
  }
}

TEST(Heartbeat, ARankThatEndsAsItShouldIsNotLost) {
  Three t;
  t.two.send({News::kBye, 2});
  t.two.close();
  t.one.reset();
  EXPECT_TRUE(t.zero->all_done(1));
  EXPECT_TRUE(loses_nobody(*t.zero));
  EXPECT_EQ(t.deaths[0], -1);
}

TEST(Heartbeat, RankZeroPassesOnWhoWaitsAndWhoIsDone) {
  Three t;
  t.two.send({News::kStuck, 2});
  t.is_stuck[0] = true;
  EXPECT_TRUE(comes_true([&] { return t.one->stuck() == std::vector<int>({0, 2}); }, 1));
  t.two.send({News::kMoving, 2});
  t.is_stuck[0] = false;
  EXPECT_TRUE(comes_true([&] { return t.one->stuck().empty(); }, 1));
  EXPECT_FALSE(t.one->all_done(0.1));
  t.two.send({News::kDone, 2});
  t.zero->say_done();
  EXPECT_TRUE(t.one->all_done(1));
}

TEST(Heartbeat, StrangersAreNotLetIn) {
  Listener listener;
  std::istringstream words(listener.invitation());
  std::string token, rest;
  std::getline(words >> token, rest);
  Link stranger;
  std::thread knocks([&] { stranger = accept_invitation("1" + rest, 1, 0.1); });
  const std::vector<Link> links = listener.accept_all(2, 0.5);
  knocks.join();
  EXPECT_FALSE(links[1].is_open());
  EXPECT_FALSE(stranger.is_open());
}

}  // namespace
}  // namespace tandem::comm
