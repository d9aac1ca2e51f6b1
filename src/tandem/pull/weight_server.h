// SPDX-License-Identifier: Apache-2.0
#pragma once
// Weights for who asks, in place of a push to ranks that a plan knows: one rank's part of the newest version, under its layout. It is
// copied once a version into shared memory. Processes of this machine read it there; others get the boxes that they name.

#include <ATen/core/Tensor.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tandem/comm/endpoint.h"
#include "tandem/comm/shared_memory.h"
#include "tandem/model/parameters.h"
#include "tandem/pull/weights_message.h"

namespace tandem::pull {

struct WeightServerCounts {
  int64_t bytes_copied = 0;  ///< by publish()
  int64_t bytes_sent = 0;    ///< of boxes, through sockets
  int64_t mapped = 0;        ///< times that a reader was told where they lie
  int64_t sent_elsewhere = 0;  ///< times that a reader was sent to another that had it
};

/// Ownership  owns the copies.
/// Threads    owns and joins its thread; publish from one other.
/// Errors     UserError for an address that it cannot have; PeerError if there is no memory. What it cannot read it does not answer.
/// Read next  weight_source.h, docs/design/weights_by_pull.md
class WeightServer {
 public:
  /// `table`: how the rank's values lie, of dtype `dtype`.
  WeightServer(const model::ParameterTable& table, at::ScalarType dtype, const std::string& address,
               const comm::ServerKeys& keys = comm::make_keys());
  ~WeightServer();

  /// These are the weights of `version` from now on. Who asks for an older one hears of it; who reads it in place reads on.
  void publish(const at::Tensor& values, PolicyVersion version);
  /// What a WeightSource finds it by: its address and, behind a space, its public key.
  const std::string& place() const { return place_; }
  WeightServerCounts counts() const;

 private:
  struct Version {
    PolicyVersion number{-1};
    int64_t secret = 0;
    std::unique_ptr<comm::SharedMemory> memory;
  };
  std::shared_ptr<Version> room();
  std::shared_ptr<Version> version_of(PolicyVersion number) const;
  at::Tensor values_of(const Version& version) const;
  void serve();
  std::vector<std::byte> answer(std::span<const std::byte> request);
  void say_where(const WeightsRequest& request, WeightsAnswer& answer);
  std::vector<std::byte> boxes_of(const Version& version, const WeightsRequest& request) const;
  uint64_t digest_of_boxes(const Version& version, const WeightsRequest& request);

  const model::ParameterTable table_;
  const at::ScalarType dtype_;
  comm::Endpoint endpoint_;
  const std::string place_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::shared_ptr<Version>> versions_;
  std::shared_ptr<Version> newest_;
  // By part of the model: who has that of the newest version, this one with an empty place among them, until when each gives it to
  // somebody, and until when it is taken to be there; this one always is.
  struct Giver {
    WeightHolder holder;
    double busy_until_s = 0, known_until_s = 0;
  };
  std::map<std::string, std::vector<Giver>> givers_;
  std::map<uint64_t, uint64_t> digests_;  // of the newest version, by the digest of the request
  WeightServerCounts counts_;
  std::atomic<bool> is_closing_ = false;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace tandem::pull
