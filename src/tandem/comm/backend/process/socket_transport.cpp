// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/backend/process/socket_transport.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "tandem/base/check.h"

namespace tandem::comm {
namespace {

constexpr double kMoment_s = 0.02;  // until a wait looks at deaths and its deadline again

/// Each bit of the result depends on all of both (the finalizer of splitmix64, twice).
uint64_t mixed(uint64_t a, uint64_t b) {
  const auto spread = [](uint64_t x) {
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  };
  return spread(spread(a) + b);
}

class SocketRequests final : public Requests {
 public:
  SocketRequests(MessageStreams& streams, uint64_t channel, const std::vector<int>& members)
      : streams_(streams), channel_(channel), members_(members) {}
  ~SocketRequests() override { streams_.cancel(operation_); }

  void send(int peer, int tag, const void* from, int64_t bytes) override { streams_.send(operation_, lane(peer, tag), from, bytes); }
  void receive(int peer, int tag, void* to, int64_t bytes) override { streams_.receive(operation_, lane(peer, tag), to, bytes); }
  State test() override {
    const int left = streams_.num_left(operation_);
    return left == 0 ? State::kDone : left < 0 ? State::kMisfit : State::kUnderWay;
  }
  bool pause(int64_t) override {
    streams_.wait(operation_, kMoment_s);
    return true;
  }
  std::vector<int> unfinished() override {
    std::vector<int> peers = streams_.peers_left(operation_);
    for (int& peer : peers) peer = static_cast<int>(std::ranges::find(members_, peer) - members_.begin());
    return peers;
  }
  void cancel() noexcept override { streams_.cancel(operation_); }

 private:
  MessageStreams::Lane lane(int peer, int tag) const { return {channel_, members_[static_cast<size_t>(peer)], tag}; }

  MessageStreams& streams_;
  const uint64_t channel_;
  const std::vector<int>& members_;
  MessageStreams::Operation operation_;
};

class SocketChannel final : public Channel {
 public:
  SocketChannel(SocketTransport& transport, MessageStreams& streams, uint64_t number, std::vector<int> members)
      : transport_(transport), streams_(streams), number_(number), members_(std::move(members)) {}

  std::unique_ptr<Requests> begin() override { return std::make_unique<SocketRequests>(streams_, number_, members_); }
  void send(int peer, int tag, MessageBytes bytes, const std::string& name) override {
    streams_.send_buffered({number_, members_[static_cast<size_t>(peer)], tag}, std::move(bytes), name);
  }
  bool arrived(int peer, int tag) override { return streams_.arrived({number_, members_[static_cast<size_t>(peer)], tag}); }
  std::unique_ptr<Channel> split(const std::vector<int>& members, int color, const std::string& name) override {
    std::vector<int> in_world;
    for (int member : members) in_world.push_back(members_[static_cast<size_t>(member)]);
    const uint64_t part = mixed(mixed(number_, ++num_splits_), static_cast<uint64_t>(color));
    return transport_.channel(part, std::move(in_world), name);
  }
  void abandon() noexcept override {}

 private:
  SocketTransport& transport_;
  MessageStreams& streams_;
  const uint64_t number_;
  const std::vector<int> members_;  // ranks of the world
  uint64_t num_splits_ = 0;
};

}  // namespace

SocketTransport::SocketTransport(int rank, RankSockets sockets, std::function<void()> end_others)
    : rank_(rank),
      machines_(sockets.peers.size(), 0),
      end_others_(std::move(end_others)),
      links_(std::move(sockets.links)),
      streams_(rank, std::move(sockets.peers)) {}

std::unique_ptr<Channel> SocketTransport::world() {
  std::vector<int> all(machines_.size());
  std::iota(all.begin(), all.end(), 0);
  return channel(mixed(0, ++num_worlds_), std::move(all), "world");
}

std::unique_ptr<Channel> SocketTransport::channel(uint64_t number, std::vector<int> members, const std::string& name) {
  {
    std::lock_guard lock(mutex_);
    names_[number] = name;
  }
  return std::make_unique<SocketChannel>(*this, streams_, number, std::move(members));
}

std::vector<std::string> SocketTransport::untaken() {
  std::vector<std::string> names = streams_.unaccepted();
  std::lock_guard lock(mutex_);
  for (const MessageStreams::Lane& lane : streams_.unasked())
    names.push_back(join_text("rank ", lane.peer, ": send in group '", names_[lane.channel], "' with rank ", rank_));
  return names;
}

void SocketTransport::end_process() noexcept {
  end_others_();
  ::_exit(3);
}

}  // namespace tandem::comm
