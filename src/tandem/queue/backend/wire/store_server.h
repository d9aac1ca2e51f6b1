// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies for whoever trains them: a store's rows, end to end without padding, straight from the process that made them. On one machine
// they lie in shared memory, where the reader reads them in place.

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tandem/base/clock.h"
#include "tandem/comm/shared_memory.h"
#include "tandem/comm/endpoint.h"
#include "tandem/queue/body/store.h"

namespace tandem::queue::wire {

/// Ownership  uses the store.
/// Threads    owns and joins its thread.
/// Errors     UserError for an address that it cannot have.
class StoreServer {
 public:
  StoreServer(const Store& store, const std::string& address, const comm::ServerKeys& keys = comm::make_keys());
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  /// What a StoreReader finds it by: its address and, behind a space, its public key.
  const std::string& place() const { return place_; }
  /// Of answers, since the start: what went through sockets, and what was lent in shared memory.
  int64_t bytes_sent() const { return bytes_sent_; }
  int64_t bytes_lent() const { return bytes_lent_; }

 private:
  void serve();
  std::vector<std::byte> answer(std::span<const std::byte> request);

  const Store& store_;
  comm::Endpoint endpoint_;
  const std::string place_;
  comm::SharedLanes lanes_;
  std::atomic<int64_t> bytes_sent_ = 0, bytes_lent_ = 0;
  std::atomic<bool> is_closing_ = false;
  std::thread thread_;  // last: it uses all the others
};

/// Reads from stores, and keeps the connections.
/// Threads    one.
class StoreReader {
 public:
  /// `most_row_bytes`: of one row; a store that sends more than a message of such rows has is none.
  explicit StoreReader(double deadline_s, int64_t most_row_bytes = comm::kMaxMessageBytes);

  /// Fetches the rows of these samples, in place of what `into` has of them. False if the store at `place` lacks one, has other fields,
  /// gives no rows of samples, or gives no answer for the deadline: a minute at least, where its memory is not shared. Then
  /// `into` has some of them or none.
  bool read(const std::string& place, std::span<const SampleId> samples, TensorCache& into);
  /// What the last read() found wrong with what the store said; "" where it said nothing wrong.
  const std::string& fault() const { return fault_; }
  /// Of answers.
  int64_t bytes_received() const { return bytes_received_; }

 private:
  static constexpr int64_t kKeptReads = 4096;  // for which a connection that nobody uses is kept
  struct Known {
    comm::Endpoint endpoint;
    bool shares = false;  // its memory may be mapped
    int64_t last_read = 0;
    std::vector<std::pair<int64_t, std::shared_ptr<comm::BorrowedMemory>>> lanes;  // that were mapped, by serial
    std::shared_ptr<comm::BorrowedMemory> lane(const comm::SharedHandle& handle, int64_t least_bytes, int64_t secret);
  };
  comm::Endpoint endpoint_to(const std::string& place) const;
  int64_t read_some(const std::string& place, Known& store, std::span<const SampleId> samples, TensorCache& into,
                    const Deadline& deadline);
  int64_t take_rows(Known& store, comm::Letter letter, int64_t secret, std::span<const SampleId> samples, TensorCache& into);

  const double deadline_s_;
  const int64_t most_bytes_;  // of a message
  std::string fault_;
  std::map<std::string, Known> stores_;
  int64_t num_reads_ = 0, num_requests_ = 0, bytes_received_ = 0;
};

}  // namespace tandem::queue::wire
