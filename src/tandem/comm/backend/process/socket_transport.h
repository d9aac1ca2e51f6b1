// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages between ranks that are processes of one machine, which one of them has started.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tandem/comm/backend/process/message_streams.h"
#include "tandem/comm/backend/process/transport.h"

namespace tandem::comm {

/// Sockets by which a rank reaches the others: those of messages by rank, -1 for itself, and those of the heartbeat.
struct RankSockets {
  std::vector<int> peers;
  std::vector<Link> links;
};

/// Ownership  the sockets.
class SocketTransport final : public Transport {
 public:
  /// `end_others` is called where others may not end by themselves: by the first rank that lives, or as this process ends at once.
  SocketTransport(int rank, RankSockets sockets, std::function<void()> end_others);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(machines_.size()); }
  const std::vector<int>& machines() const override { return machines_; }
  std::unique_ptr<Channel> world() override;
  std::vector<Link> take_links() override { return std::move(links_); }
  void tell(const std::string& reason) noexcept override { streams_.tell(reason); }
  std::string heard() override { return streams_.notice(); }
  std::vector<std::string> untaken() override;
  void close() override {}
  void end_others() noexcept override { end_others_(); }
  [[noreturn]] void end_process() noexcept override;

  /// A channel of these ranks of the world, under a number that all of them derive alike.
  std::unique_ptr<Channel> channel(uint64_t number, std::vector<int> members, const std::string& name);

 private:
  const int rank_;
  const std::vector<int> machines_;
  const std::function<void()> end_others_;
  std::vector<Link> links_;
  uint64_t num_worlds_ = 0;
  std::mutex mutex_;
  std::map<uint64_t, std::string> names_;  // of the groups, by the numbers of their channels; they stay, for untaken()
  MessageStreams streams_;
};

}  // namespace tandem::comm
