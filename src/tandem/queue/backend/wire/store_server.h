// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies for whoever trains them: a store's rows, end to end without padding, straight from the process that made them.

#include <atomic>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tandem/base/clock.h"
#include "tandem/data/columns.h"
#include "tandem/queue/backend/wire/endpoint.h"
#include "tandem/queue/store.h"

namespace tandem::queue::wire {

/// Ownership  uses the store.
/// Threads    owns and joins its thread.
/// Errors     UserError for an address that it cannot have.
class StoreServer {
 public:
  StoreServer(const Store& store, const std::string& address, const std::optional<ServerKeys>& keys = {});
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  /// What a StoreReader finds it by: its address and, behind a space, its public key if it has keys.
  const std::string& place() const { return place_; }
  /// Of rows, since the start.
  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  void serve();

  const Store& store_;
  Endpoint endpoint_;
  const std::string place_;
  std::atomic<int64_t> bytes_sent_ = 0;
  std::atomic<bool> is_closing_ = false;
  std::thread thread_;  // last: it uses all the others
};

/// Reads from stores, and keeps the connections.
/// Threads    one.
class StoreReader {
 public:
  explicit StoreReader(double deadline_s) : deadline_s_(deadline_s) {}

  /// A row for each sample, in this order. Nothing if the store at `place` lacks one, gives no rows of samples, or does not answer within
  /// the deadline.
  std::optional<data::Fields> read(const std::string& place, std::span<const SampleId> samples);
  int64_t bytes_received() const { return bytes_received_; }

 private:
  static constexpr int64_t kKeptReads = 4096;  // for which a connection that nobody uses is kept
  struct Known {
    Endpoint endpoint;
    int64_t last_read = 0;
  };
  std::optional<data::Fields> answer_of(Endpoint& store, std::span<const SampleId> samples, const Deadline& deadline);

  const double deadline_s_;
  std::map<std::string, Known> stores_;
  int64_t num_reads_ = 0, num_requests_ = 0, bytes_received_ = 0;
};

}  // namespace tandem::queue::wire
