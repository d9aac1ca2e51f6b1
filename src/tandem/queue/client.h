// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a process sees of the queue, wherever the controller and the bodies are.
//
//   generates   join --> lease --> (evicted ...) --> put       the bodies stay in its store until the groups leave
//   trains      join --> take --> read --> commit

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/queue/body/store.h"
#include "tandem/queue/caller.h"
#include "tandem/queue/controller.h"

namespace tandem::queue {

/// A group to generate.
struct Task {
  Lease lease;
  data::Prompt prompt;
  std::vector<data::Sample> begun = {};  ///< what another reported of it; empty: it starts anew
  static void each(auto& m, auto&& field) { field(m.lease), field(m.prompt), field(m.begun); }
};

/// What lies between a client, its desk and the stores of others. What is sent may be lost or come twice.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual void send(const Call& call) = 0;
  /// Nothing if none comes within `seconds`.
  virtual std::optional<Answer> receive(double seconds) = 0;
  /// Fetches the rows of these samples, in place of what `into` has of them. False if one is not there, or the store does not answer;
  /// then `into` has some of them or none.
  virtual bool read(const std::string& store, std::span<const SampleId> samples, TensorCache& into) = 0;
  /// At which others find the store of this client.
  virtual const std::string& own_store() const = 0;
  /// Of the queue, for errors.
  virtual std::string name() const = 0;
};

struct ClientOptions {
  double deadline_s = 60;  ///< for each verb
  StopRequested stop = {};  ///< ends the wait of any verb: Interrupted; may be empty
  std::string dtype = {}, device = {};  ///< call::Join
  std::function<void(double seconds)> waits = {};  ///< hears, once a call, that no answer came for so long; may be empty
};

/// Ownership  uses transport and store; none of the groups is its own: they are the queue's.
/// Threads    one.
/// Blocking   each verb at most the deadline that it was made with, then PeerError that names the queue.
/// Errors     PeerError; also if an answer makes no sense. UserError from join() where the queue does not want this client.
/// Read next  docs/design/dist_queue.md
class Client {
 public:
  Client(Transport& transport, Store& store, const ClientOptions& options);

  /// Makes this client known. Where it has joined before, it was given up, or the controller was started again: its leases are gone. If
  /// incarnation() is another afterwards, weights of versions above newest() are of a history that is gone, and so are its finished groups.
  /// Gives what the run tells those who join; "" if it is over.
  std::string join();
  /// False before join(), and once the queue says that it does not know this client: until it joins again every verb does nothing.
  bool has_joined() const { return caller_.has_joined(); }
  /// Whether the queue said that the run is over.
  bool has_ended() const { return caller_.has_ended(); }
  Incarnation incarnation() const { return caller_.incarnation(); }
  /// The newest version that it has heard of.
  PolicyVersion newest() const { return newest_; }
  /// Of the weights that the next leases are asked with: call::LeaseGroups::weights_checksum.
  void tell_weights(int64_t checksum) { weights_checksum_ = checksum; }

  /// Controller::lease.
  std::vector<Task> lease(int64_t most, PolicyVersion version, int64_t speaks_for = 1);
  /// A sign of life, to be given every third of a lease: this client has `version`, its leases stand so, and it has the bodies of
  /// `finished` groups. `begun`: of each lease that is reported, in their order, the tokens so far, so that another can go on with them.
  /// Returns leases and finished groups that are over: evicted, trained, or another's. Their bodies are dropped.
  std::vector<GroupId> evicted(PolicyVersion version, std::span<const Standing> leases, std::span<const GroupId> finished,
                               std::vector<data::Group> begun);
  /// Groups that finished under these leases, and their bodies: rows of their samples in order. Returns which of them are of any use; the
  /// store keeps the bodies of those. `measures`: call::Put.
  std::vector<bool> put(std::span<const LeaseNumber> leases, std::vector<data::Group> heads, data::Fields bodies,
                        std::vector<int64_t> measures = {});

  /// The heads of the batch of `step`, ordered by group, for an update of the weights of `version`; none if it is not ready.
  std::optional<data::Batch> take(StepId step, PolicyVersion version);
  /// Fetches the bodies of the taken batch, whose owner drops them. False if one is gone: its group is generated anew, and the batch is
  /// to be taken again.
  bool read(TensorCache& into);
  /// Returns the groups that left untrained. Errors: PeerError if the batch of this step is not this client's.
  std::vector<GroupId> commit(StepId step, PolicyVersion after);
  /// Its leases end. Bodies of finished groups stay in its store for as long as that answers. `failure` is what made it go, if something
  /// did.
  void close(const std::string& failure = "");

 private:
  using What = decltype(Answer::what);
  What ask(decltype(Call::verb) verb);
  What ask_as_before(decltype(Call::verb) verb);
  What answer_to(const Call& call);
  [[noreturn]] void fail(const std::string& what) const;
  void drop(std::span<const GroupId> groups);
  std::vector<SampleId> samples_of(std::span<const GroupId> groups) const;

  Transport& transport_;
  Store& store_;
  const ClientOptions options_;
  Caller caller_;
  PolicyVersion newest_{0};
  int64_t group_size_ = 1;
  std::map<GroupId, Told> told_;  // of unfinished ones: what the desk has
  std::set<GroupId> kept_;  // finished ones, whose bodies are in the store
  std::vector<std::pair<std::string, std::vector<GroupId>>> taken_;  // by store
  int64_t weights_checksum_ = 0;
};

}  // namespace tandem::queue
