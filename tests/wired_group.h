// SPDX-License-Identifier: Apache-2.0
#pragma once
// A group that does something to a rank's exchanges, between it and the group it stands for.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tandem/comm/group.h"

namespace tandem::test {

/// What happens around each all_to_all_v; either may be empty.
struct Wire {
  std::function<void()> before;
  std::function<void(std::span<std::byte> received)> after;
};

class WiredGroup final : public comm::Group {
 public:
  WiredGroup(comm::Group& inner, Wire wire) : Group(inner.name(), inner.rank(), ranks_of(inner)), inner_(inner), wire_(std::move(wire)) {}
  std::string death() override { return inner_.death(); }

 private:
  void do_abort(const std::string& reason) noexcept override { inner_.abort(reason); }
  static std::vector<int> ranks_of(const comm::Group& group) {
    std::vector<int> ranks;
    for (int r = 0; r < group.size(); ++r) ranks.push_back(group.world_rank(r));
    return ranks;
  }
  void do_barrier() override { inner_.barrier(); }
  void do_broadcast(at::Tensor& tensor, int root) override { inner_.broadcast(tensor, root); }
  void do_all_reduce(at::Tensor& tensor, comm::ReduceOp op) override { inner_.all_reduce(tensor, op); }
  void do_all_gather(at::Tensor& out, const at::Tensor& in) override { inner_.all_gather(out, in); }
  void do_reduce_scatter(at::Tensor& out, const at::Tensor& in) override { inner_.reduce_scatter(out, in); }
  void do_all_to_all_v(std::span<const std::byte> send, std::span<const int64_t> send_bytes, std::span<std::byte> receive,
                       std::span<const int64_t> receive_bytes) override {
    if (wire_.before) wire_.before();
    inner_.all_to_all_v(send, send_bytes, receive, receive_bytes);
    if (wire_.after) wire_.after(receive);
  }
  void do_send(const at::Tensor& tensor, int to, int tag) override { inner_.send(tensor, to, tag); }
  void do_receive(at::Tensor& tensor, int from, int tag) override { inner_.receive(tensor, from, tag); }
  bool do_arrived(int from, int tag) override { return inner_.arrived(from, tag); }
  std::unique_ptr<comm::Group> do_split(int color, const std::string& name) override { return inner_.split(color, name); }

  comm::Group& inner_;
  Wire wire_;
};

}  // namespace tandem::test
