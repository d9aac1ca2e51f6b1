// SPDX-License-Identifier: Apache-2.0
#pragma once
// A queue without a server: each rank has the controller and its desk, and all carry out all calls, in the order of ranks. So they decide
// alike. Who has nothing to ask takes part, too.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/comm/group.h"
#include "tandem/queue/desk.h"
#include "tandem/queue/desk_client.h"

namespace tandem::queue {

/// One rank's controller. Equal on all ranks; only a CollectiveTransport tells it anything.
struct CollectiveQueue {
  CollectiveQueue(const Options& options, double lease_s, Desk::PromptOf prompt_of, std::string welcome = "")
      : controller(options, LeaseTerms{lease_s, Incarnation{0}}),
        desk(controller, Incarnation{0}, "", std::move(prompt_of), std::move(welcome)) {}
  Controller controller;
  Desk desk;
};

/// Ownership  uses group, queue and store.
/// Threads    one per rank.
/// Blocking   send, read and attend are collective, in any mixture: each is one exchange. At most the group's deadline.
/// Errors     PeerError from the group.
class CollectiveTransport final : public Transport {
 public:
  /// Time comes from the first rank, so that leases end alike.
  CollectiveTransport(comm::Group& group, CollectiveQueue& queue, const Store& own);

  void send(const Call& call) override;
  std::optional<Answer> receive(double) override { return std::exchange(answer_, std::nullopt); }
  bool read(const std::string& store, std::span<const SampleId> samples, TensorCache& into) override;
  const std::string& own_store() const override { return own_store_; }
  std::string name() const override { return "queue of the ranks"; }

  /// Takes part in what others ask. False once some rank has said `over`.
  bool attend(bool over = false);
  /// The bodies of this rank are gone.
  void lose_store() { own_ = nullptr; }

 private:
  struct Ask;
  std::vector<Ask> exchange(const Ask& mine);
  std::vector<std::byte> rows_for(const Ask& ask) const;

  comm::Group& group_;
  CollectiveQueue& queue_;
  const Store* own_;
  const std::string own_store_;
  std::optional<Answer> answer_;
};

}  // namespace tandem::queue
