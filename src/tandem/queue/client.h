// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a process sees of the queue, wherever the controller and the bodies are.
//
//   generates   join --> lease --> (evicted ...) --> put       the bodies stay in its store until the groups leave
//   trains      join --> take --> read --> commit

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tandem/data/columns.h"
#include "tandem/queue/controller.h"
#include "tandem/queue/body/tensor_cache.h"

namespace tandem::queue {

/// A group to generate.
struct Task {
  Lease lease;
  data::Prompt prompt;
  std::vector<data::Sample> begun = {};  ///< what another reported of it; empty: it starts anew
};

/// Ownership  none of the groups: they are the queue's.
/// Threads    one.
/// Blocking   each verb at most the deadline that the client was made with, then PeerError that names the queue.
/// Errors     PeerError; also if an answer makes no sense.
/// Read next  docs/design/dist_queue.md
class Client {
 public:
  virtual ~Client() = default;

  /// Makes this client known. Where it has joined before, it was given up, or the controller was started again: its leases are gone. If
  /// incarnation() is another afterwards, weights of versions above newest() are of a history that is gone, and so are its finished groups.
  /// Gives what the run tells those who join; "" if it is over.
  virtual std::string join() = 0;
  /// False before join(), and once the queue says that it does not know this client: until it joins again every verb does nothing.
  virtual bool has_joined() const = 0;
  /// Whether the queue said that the run is over.
  virtual bool has_ended() const = 0;
  virtual Incarnation incarnation() const = 0;
  /// The newest version that it has heard of.
  virtual PolicyVersion newest() const = 0;

  /// Controller::lease.
  virtual std::vector<Task> lease(int64_t most, PolicyVersion version, int64_t speaks_for = 1) = 0;
  /// A sign of life, to be given every third of a lease: this client has `version`, its leases stand so, and it has the bodies of
  /// `finished` groups. `begun`: of each lease that is reported, in their order, the tokens so far, so that another can go on with them.
  /// Returns leases and finished groups that are over: evicted, trained, or another's. Their bodies are dropped.
  virtual std::vector<GroupId> evicted(PolicyVersion version, std::span<const Standing> leases, std::span<const GroupId> finished,
                                       std::vector<data::Group> begun) = 0;
  /// Groups that finished under these leases, and their bodies: rows of their samples in order. Returns which of them are of any use; the
  /// store keeps the bodies of those. `measures`: call::Put.
  virtual std::vector<bool> put(std::span<const LeaseNumber> leases, std::vector<data::Group> heads, data::Fields bodies,
                                std::vector<int64_t> measures = {}) = 0;

  /// The heads of the batch of `step`, ordered by group, for an update of the weights of `version`; none if it is not ready.
  virtual std::optional<data::Batch> take(StepId step, PolicyVersion version) = 0;
  /// Fetches the bodies of the taken batch, whose owner drops them. False if one is gone: its group is generated anew, and the batch is
  /// to be taken again.
  virtual bool read(TensorCache& into) = 0;
  /// Returns the groups that left untrained. Errors: PeerError if the batch of this step is not this client's.
  virtual std::vector<GroupId> commit(StepId step, PolicyVersion after) = 0;
  /// Its leases end. Bodies of finished groups stay in its store for as long as that answers. `failure` is what made it go, if something
  /// did.
  virtual void close(const std::string& failure = "") = 0;
};

}  // namespace tandem::queue
