// SPDX-License-Identifier: Apache-2.0
#pragma once
// A group that counts what its rank sends to others, by operation. docs/communication.md has the formulas.

#include <ATen/core/Tensor.h>

#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "comm_operation.h"
#include "tandem/comm/group.h"

namespace tandem::test {

/// Calls, and the bytes this rank sent to other ranks: what the operation has to move at least, not what a backend happens to move.
struct Traffic {
  struct Count {
    int64_t calls = 0, bytes = 0;
  };
  Count& of(comm::Operation operation) { return by_operation[static_cast<size_t>(operation)]; }
  /// Of all operations.
  int64_t bytes() const {
    int64_t sum = 0;
    for (const Count& count : by_operation) sum += count.bytes;
    return sum;
  }

  std::array<Count, comm::kNumOperations> by_operation;
};

/// By the names of groups.
using TrafficByName = std::map<std::string, Traffic>;

/// Passes all on to a group of any backend. Groups split from it count, too, in one table with it: those of one name together.
///
/// Ownership  uses the group that it is made of, and owns those that are split.
/// Threads    as Group; groups of one name are used by one thread at a time.
class CountingGroup final : public comm::Group {
 public:
  explicit CountingGroup(comm::Group& inner) : CountingGroup(inner, nullptr, std::make_shared<TrafficByName>()) {}

  /// Of this group and others of its name.
  Traffic& traffic() { return traffic_; }
  Traffic& traffic_of(const std::string& name) { return (*all_)[name]; }
  void reset() {
    for (auto& [name, traffic] : *all_) traffic = {};
  }
  std::string death() override { return inner_.death(); }

 private:
  using Operation = comm::Operation;
  CountingGroup(comm::Group& inner, std::unique_ptr<comm::Group> owned, std::shared_ptr<TrafficByName> all)
      : Group(inner.name(), inner.rank(), world_ranks_of(inner), inner.device()),
        inner_(inner),
        owned_(std::move(owned)),
        all_(std::move(all)),
        traffic_((*all_)[inner.name()]) {}

  static std::vector<int> world_ranks_of(const comm::Group& group) {
    std::vector<int> ranks;
    for (int r = 0; r < group.size(); ++r) ranks.push_back(group.world_rank(r));
    return ranks;
  }
  void count(Operation operation, int64_t bytes) {
    ++traffic_.of(operation).calls;
    traffic_.of(operation).bytes += bytes;
  }
  static int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

  void do_abort(const std::string& reason) noexcept override { inner_.abort(reason); }
  void do_barrier() override {
    count(Operation::kBarrier, 0);
    inner_.barrier();
  }
  void do_broadcast(at::Tensor& tensor, int root) override {
    count(Operation::kBroadcast, rank() == root ? bytes_of(tensor) * (size() - 1) : 0);
    inner_.broadcast(tensor, root);
  }
  void do_all_reduce(at::Tensor& tensor, comm::ReduceOp op) override {
    count(Operation::kAllReduce, 2 * bytes_of(tensor) * (size() - 1) / size());
    inner_.all_reduce(tensor, op);
  }
  void do_all_gather(at::Tensor& out, const at::Tensor& in) override {
    count(Operation::kAllGather, bytes_of(in) * (size() - 1));
    inner_.all_gather(out, in);
  }
  void do_reduce_scatter(at::Tensor& out, const at::Tensor& in) override {
    count(Operation::kReduceScatter, bytes_of(out) * (size() - 1));
    inner_.reduce_scatter(out, in);
  }
  std::unique_ptr<comm::Work> do_begin_reduce_scatter(at::Tensor& out, const at::Tensor& in) override {
    count(Operation::kReduceScatter, bytes_of(out) * (size() - 1));
    return inner_.begin_reduce_scatter(out, in);
  }
  void do_all_to_all_v(std::span<const std::byte> send, std::span<const int64_t> send_bytes, std::span<std::byte> receive,
                       std::span<const int64_t> receive_bytes) override {
    const int64_t all = std::accumulate(send_bytes.begin(), send_bytes.end(), int64_t{0});
    count(Operation::kAllToAllV, all - send_bytes[static_cast<size_t>(rank())]);
    inner_.all_to_all_v(send, send_bytes, receive, receive_bytes);
  }
  void do_send(const at::Tensor& tensor, int to, int tag) override {
    count(Operation::kSend, to == rank() ? 0 : bytes_of(tensor));
    inner_.send(tensor, to, tag);
  }
  void do_receive(at::Tensor& tensor, int from, int tag) override {
    count(Operation::kReceive, 0);
    inner_.receive(tensor, from, tag);
  }
  bool do_arrived(int from, int tag) override { return inner_.arrived(from, tag); }
  std::unique_ptr<comm::Group> do_split(int color, const std::string& name) override {
    count(Operation::kSplit, 0);
    std::unique_ptr<comm::Group> part = inner_.split(color, name);
    comm::Group& of_part = *part;
    return std::unique_ptr<comm::Group>(new CountingGroup(of_part, std::move(part), all_));
  }

  comm::Group& inner_;
  const std::unique_ptr<comm::Group> owned_;  // inner_ of a group that was split
  const std::shared_ptr<TrafficByName> all_;
  Traffic& traffic_;
};

}  // namespace tandem::test
