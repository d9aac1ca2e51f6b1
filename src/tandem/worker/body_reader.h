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
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tandem/base/ids.h"
#include "tandem/queue/backend/wire/store_server.h"
#include "tandem/queue/body/store.h"

namespace tandem::worker {

/// A finished group, and where its body is.
struct Wanted {
  GroupId group{};
  std::string store;
  std::vector<int64_t> measures;  ///< queue::measures_of: a body that has others is none
};

/// What a body may have. -1 stands for a token without a route.
struct BodyLimits {
  int64_t group_size = 1;
  int64_t vocab_size = 0;    ///< token ids below
  int64_t num_experts = 0;   ///< routes below
  int64_t route_width = 0;   ///< routes of a token, where there are any
};

/// Ownership  owns what it has fetched, until it is taken or dropped.
/// Threads    used by one; owns and joins another.
/// Blocking   fetch_now(), at most twice the deadline for each store that gives nothing.
/// Errors     what its own thread cannot do fetch_now() does again.
class BodyReader {
 public:
  /// `deadline_s`: for a store to answer. A body that is beyond the limits is none.
  BodyReader(const BodyLimits& limits, double deadline_s);
  ~BodyReader();
  BodyReader(const BodyReader&) = delete;
  BodyReader& operator=(const BodyReader&) = delete;

  /// These come ahead, store by store.
  void fetch_ahead(std::vector<Wanted> groups);
  /// These are here afterwards, but those that it returns: their stores lack some of them, or do not answer.
  std::vector<GroupId> fetch_now(std::vector<Wanted> groups);
  /// All that is here, into `into`; then it is here no more.
  std::vector<GroupId> take(queue::TensorCache& into);
  /// Known or not: wanted, on the way, or here.
  void drop(std::span<const GroupId> groups);

  /// Of bodies by sockets: all, and those that came ahead.
  int64_t bytes_received() const { return bytes_received_; }
  int64_t bytes_ahead() const { return bytes_ahead_; }

 private:
  void work();
  std::vector<GroupId> fetch(queue::wire::StoreReader& reader, std::span<const Wanted> of_store, queue::TensorCache& rows);
  bool fits(const Wanted& wanted, const queue::TensorCache& rows) const;
  void keep(const std::vector<GroupId>& groups, const queue::TensorCache& rows);
  std::vector<SampleId> samples_of(std::span<const GroupId> groups) const;

  const BodyLimits limits_;
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
