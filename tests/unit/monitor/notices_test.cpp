// SPDX-License-Identifier: Apache-2.0
#include "tandem/monitor/notices.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>

namespace tandem::monitor {
namespace {

std::string logged(const std::function<void()>& action) {
  testing::internal::CaptureStderr();
  action();
  return testing::internal::GetCapturedStderr();
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Notices, OfEachKindTheFirstIsSaidWhoeverSaysIt) {
  Notices notices;
  const std::string text = logged([&] {
    const auto say = [&](int rank) {
      for (int i = 0; i < 100; ++i) notices.say("kind " + std::to_string(i % 2), "from rank " + std::to_string(rank));
    };
    std::thread other([&] { say(1); });
    say(0);
    other.join();
  });
  EXPECT_EQ(count(text, "from rank"), 2u) << text;
  EXPECT_TRUE(notices.take().empty());
}

TEST(Notices, WhatIsDeferredWaitsForWhoTakesIt) {
  Notices notices;
  notices.defer();
  const std::string text = logged([&] {
    notices.say("a", "first");
    notices.say("a", "second");
    notices.say("b", "third");
  });
  EXPECT_EQ(text, "");
  const std::vector<Notice> taken = notices.take();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].kind + taken[0].text + taken[1].kind + taken[1].text, "afirstbthird");
  notices.say("a", "again");
  EXPECT_TRUE(notices.take().empty()) << "said is said";
}

TEST(Notices, AnyTextSurvivesTheWayToAnotherProcess) {
  const std::vector<Notice> notices = {{"kind", "a\x1f" "b:3:\n\xff"}, {"", ""}, {"7:x", std::string("\0z", 2)}};
  const std::vector<Notice> back = notices_of(to_bytes(notices));
  ASSERT_EQ(back.size(), notices.size());
  for (size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(back[i].kind, notices[i].kind);
    EXPECT_EQ(back[i].text, notices[i].text);
  }
  EXPECT_TRUE(notices_of("").empty());
  for (const char* damaged : {"3", "3:ab", "1:a", "1:a9:b"}) EXPECT_THROW(notices_of(damaged), InternalError) << damaged;
}

TEST(Notices, WhatNobodyTookIsNotLost) {
  const std::string text = logged([] {
    Notices notices;
    notices.defer();
    notices.say("a", "the last word");
  });
  EXPECT_EQ(count(text, "the last word"), 1u);
}

TEST(Notices, ARunIsNotFloodedByKinds) {
  Notices notices;
  const std::string text = logged([&] {
    for (int i = 0; i < 1000; ++i) notices.say(std::to_string(i), "another");
  });
  EXPECT_EQ(count(text, "another"), Notices::kMostKinds);
}

}  // namespace
}  // namespace tandem::monitor
