// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/backend/process/message_streams.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "tandem/base/clock.h"
#include "tandem/comm/backend/process/transport.h"

namespace tandem::comm {
namespace {

constexpr int64_t kLarge_bytes = 8 << 20;  // more than sockets keep
constexpr double kEnd_s = 20;
constexpr MessageStreams::Lane kToOne{7, 1, kFirstMessageTag}, kFromZero{7, 0, kFirstMessageTag};

std::array<int, 2> socket_ends() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
  return ends;
}

MessageBytes bytes_of(const std::string& text) {
  MessageBytes bytes{std::make_unique<std::byte[]>(text.size()), text.size()};
  std::memcpy(bytes.data.get(), text.data(), text.size());
  return bytes;
}

class Streams : public testing::Test {
 protected:
  void finish(MessageStreams& streams, MessageStreams::Operation& operation) { streams.wait(operation, kEnd_s); }
  std::string received(const MessageStreams::Lane& lane, size_t size) {
    std::string text(size, '?');
    MessageStreams::Operation operation;
    one.receive(operation, lane, text.data(), static_cast<int64_t>(size));
    finish(one, operation);
    EXPECT_EQ(one.num_left(operation), 0);
    one.cancel(operation);
    return text;
  }

  const std::array<int, 2> ends = socket_ends();
  MessageStreams zero{0, {-1, ends[0]}}, one{1, {ends[1], -1}};
  std::vector<char> large = [] {
    std::vector<char> bytes(kLarge_bytes);
    std::iota(bytes.begin(), bytes.end(), 0);
    return bytes;
  }();
};

TEST_F(Streams, ALargeMessageIsOnlySentOnceItIsAskedFor) {
  MessageStreams::Operation sent, asked;
  zero.send(sent, kToOne, large.data(), kLarge_bytes);
  const Deadline deadline = Deadline::after_s(kEnd_s);
  while (!one.arrived(kFromZero) && !deadline.passed()) std::this_thread::yield();
  ASSERT_TRUE(one.arrived(kFromZero)) << "its offer";
  zero.wait(sent, 0.2);
  EXPECT_EQ(zero.num_left(sent), 1) << "and no more: nobody keeps its bytes";
  std::vector<char> got(kLarge_bytes);
  one.receive(asked, kFromZero, got.data(), kLarge_bytes);
  finish(one, asked), finish(zero, sent);
  EXPECT_EQ(one.num_left(asked), 0);
  EXPECT_EQ(zero.num_left(sent), 0);
  EXPECT_EQ(got, large);
  zero.cancel(sent), one.cancel(asked);
}

TEST_F(Streams, MessagesOfALaneKeepTheirOrderWhateverTheirSize) {
  const std::string long_text(100'000, 'l');
  zero.send_buffered(kToOne, bytes_of("first"), "first");
  zero.send_buffered(kToOne, bytes_of(long_text), "second");
  zero.send_buffered(kToOne, bytes_of("third"), "third");
  EXPECT_EQ(received(kFromZero, 5), "first");
  EXPECT_EQ(received(kFromZero, long_text.size()), long_text);
  EXPECT_EQ(received(kFromZero, 5), "third");
}

TEST_F(Streams, AMessageOfAnotherSizeIsAMisfit) {
  for (const size_t size : {3, 100'000}) {
    std::string text(5, '?');
    MessageStreams::Operation asked;
    one.receive(asked, kFromZero, text.data(), 5);
    zero.send_buffered(kToOne, bytes_of(std::string(size, 's')), "another");
    finish(one, asked);
    EXPECT_EQ(one.num_left(asked), -1) << size;
    EXPECT_EQ(one.peers_left(asked), std::vector<int>{0});
    one.cancel(asked);
    EXPECT_EQ(text, "?????") << "nothing is written there";
  }
  zero.send_buffered(kToOne, bytes_of("fits"), "fits");
  EXPECT_EQ(received(kFromZero, 4), "fits") << "what comes behind it is whole";
}

TEST_F(Streams, WhatIsGivenUpInTheMiddleLeavesTheStreamWhole) {
  for (const bool by_sender : {true, false})
    for (int64_t round = 0; round < 20; ++round) {
      MessageStreams::Operation sent, asked;
      std::vector<char> from = large, to(kLarge_bytes);
      zero.send(sent, kToOne, from.data(), kLarge_bytes);
      one.receive(asked, kFromZero, to.data(), kLarge_bytes);
      std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
      by_sender ? zero.cancel(sent) : one.cancel(asked);
      std::ranges::fill(by_sender ? from : to, 'x');
      const bool was_under_way = by_sender && one.num_left(asked) != 0;
      if (was_under_way) one.wait(asked, 0.2);  // what was begun is sent to its end, from a copy
      by_sender ? one.cancel(asked) : zero.cancel(sent);
      EXPECT_TRUE(by_sender || std::ranges::all_of(to, [](char c) { return c == 'x'; })) << "written after it was given up";
      zero.send_buffered({7, 1, kFirstMessageTag + 1}, bytes_of("next"), "next");
      EXPECT_EQ(received({7, 0, kFirstMessageTag + 1}, 4), "next");
      zero.cancel(sent), one.cancel(asked);
    }
}

TEST_F(Streams, WhatNobodyTakesIsKnownToTheOneThatHasIt) {
  zero.send_buffered(kToOne, bytes_of(std::string(100'000, 'l')), "a large one");
  zero.send_buffered({8, 1, kFirstMessageTag + 2}, bytes_of("small"), "a small one");
  const MessageStreams::Lane small{8, 0, kFirstMessageTag + 2};
  const Deadline deadline = Deadline::after_s(kEnd_s);
  while (!one.arrived(small) && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(zero.unaccepted(), std::vector<std::string>{"a large one"});
  EXPECT_EQ(one.unasked(), std::vector<MessageStreams::Lane>{small});
}

TEST_F(Streams, ANoticePassesAMessageThatNobodyTakes) {
  MessageStreams::Operation sent;
  zero.send(sent, kToOne, large.data(), kLarge_bytes);
  zero.tell("it is over");
  zero.tell("again");
  const Deadline deadline = Deadline::after_s(kEnd_s);
  while (one.notice().empty() && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(one.notice(), "it is over");
  zero.cancel(sent);
}

}  // namespace
}  // namespace tandem::comm
