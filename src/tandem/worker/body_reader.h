// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of finished groups on their way from the workers that made them to the ranks that train: one rank of each replica that trains
// fetches its share, and hands it on inside the run. Ahead of a batch it fetches on a thread of its own.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tandem/base/ids.h"
#include "tandem/queue/backend/wire/store_server.h"
#include "tandem/queue/body/limits.h"
#include "tandem/queue/body/store.h"

namespace tandem::worker {

/// A finished group, and where its body is.
struct Wanted {
  GroupId group{};
  std::string store;
  std::vector<int64_t> measures;  ///< queue::measures_of: a body that has others is none
  /// The run's own, which takes the place of the body's. None for a body that the run has itself: that is believed.
  std::optional<data::Prompt> prompt = {};
};

/// One whose body did not come: it is not there, or it is none that the run can have had. Then `fault` says what is wrong with it.
struct Lost {
  GroupId group{};
  std::string fault = {};
};

/// Ownership  owns what it has fetched, until it is taken or dropped.
/// Threads    used by one; owns and joins another.
/// Blocking   fetch_now(), at most twice the deadline for each store that gives nothing.
/// Errors     what its own thread cannot do fetch_now() does again.
class BodyReader {
 public:
  /// `deadline_s`: for a store to answer. A body that is beyond the limits is none.
  BodyReader(const queue::GroupLimits& limits, double deadline_s);
  ~BodyReader();
  BodyReader(const BodyReader&) = delete;
  BodyReader& operator=(const BodyReader&) = delete;

  /// These come ahead, store by store.
  void fetch_ahead(std::vector<Wanted> groups);
  /// These are here afterwards, but those that it returns: their stores lack some of them, or do not answer.
  std::vector<Lost> fetch_now(std::vector<Wanted> groups);
  /// All that is here, into `into`; then it is here no more.
  std::vector<GroupId> take(queue::TensorCache& into);
  /// Known or not: wanted, on the way, or here.
  void drop(std::span<const GroupId> groups);

  /// Of bodies by sockets: all, and those that came ahead.
  int64_t bytes_received() const { return bytes_received_; }
  int64_t bytes_ahead() const { return bytes_ahead_; }

 private:
  void work();
  struct Came {
    std::vector<data::Group> groups;         // with their bodies
    std::map<GroupId, std::string> faults;   // of others
  };
  Came fetch(queue::wire::StoreReader& reader, std::span<const Wanted> of_store);
  std::string take_body(const Wanted& wanted, const queue::TensorCache& rows, data::Group& group) const;
  void keep(std::span<const data::Group> groups);
  std::vector<SampleId> samples_of(std::span<const GroupId> groups) const;

  const queue::GroupLimits limits_;
  const double deadline_s_;
  queue::Store here_;
  queue::wire::StoreReader now_reader_, ahead_reader_;  // the latter is the thread's
  std::atomic<int64_t> bytes_received_ = 0, bytes_ahead_ = 0;
  mutable std::mutex mutex_;                            // guards what follows
  std::condition_variable changed_;
  std::deque<Wanted> ahead_;
  std::set<GroupId> arrived_;
  std::set<GroupId> on_way_;                            // all of one store
  bool is_closing_ = false;
  std::thread thread_;                                  // last: it uses all the others
};

}  // namespace tandem::worker
