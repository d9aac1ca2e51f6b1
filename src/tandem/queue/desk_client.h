// SPDX-License-Identifier: Apache-2.0
#pragma once
// The client of a controller that has a desk, whatever lies between.

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/queue/caller.h"
#include "tandem/queue/client.h"
#include "tandem/queue/body/store.h"

namespace tandem::queue {

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

struct DeskClientOptions {
  double deadline_s = 60;  ///< for each verb
  StopRequested stop = {};  ///< ends the wait of any verb: Interrupted; may be empty
  std::string dtype = {}, device = {};  ///< call::Join
  std::function<void(double seconds)> waits = {};  ///< hears, once a call, that no answer came for so long; may be empty
};

/// Ownership  uses transport and store.
/// Errors     as Client; UserError from join() where the queue does not want this client.
class DeskClient final : public Client {
 public:
  DeskClient(Transport& transport, Store& store, const DeskClientOptions& options);

  std::string join() override;
  bool has_joined() const override { return caller_.has_joined(); }
  bool has_ended() const override { return caller_.has_ended(); }
  Incarnation incarnation() const override { return caller_.incarnation(); }
  PolicyVersion newest() const override { return newest_; }
  /// Of the weights that the next leases are asked with: call::LeaseGroups::weights_checksum.
  void tell_weights(int64_t checksum) { weights_checksum_ = checksum; }
  std::vector<Task> lease(int64_t most, PolicyVersion version, int64_t speaks_for = 1) override;
  std::vector<GroupId> evicted(PolicyVersion version, std::span<const Standing> leases, std::span<const GroupId> finished,
                               std::vector<data::Group> begun) override;
  std::vector<bool> put(std::span<const LeaseNumber> leases, std::vector<data::Group> heads, data::Fields bodies,
                        std::vector<int64_t> measures = {}) override;
  std::optional<data::Batch> take(StepId step, PolicyVersion version) override;
  bool read(TensorCache& into) override;
  std::vector<GroupId> commit(StepId step, PolicyVersion after) override;
  void close(const std::string& failure = "") override;

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
  const DeskClientOptions options_;
  Caller caller_;
  PolicyVersion newest_{0};
  int64_t group_size_ = 1;
  std::map<GroupId, Told> told_;  // of unfinished ones: what the desk has
  std::set<GroupId> kept_;  // finished ones, whose bodies are in the store
  std::vector<std::pair<std::string, std::vector<GroupId>>> taken_;  // by store
  int64_t weights_checksum_ = 0;
};

}  // namespace tandem::queue
