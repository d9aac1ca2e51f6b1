// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks that are processes as a group, whatever moves their messages.

#include <memory>
#include <string>
#include <vector>

#include "tandem/comm/backend/process/process_job.h"
#include "tandem/comm/backend/process/transport.h"
#include "tandem/comm/group.h"

namespace tandem::comm {

inline constexpr int kTags = kFirstMessageTag + kMaxTag + 1;

/// Every collective is made of messages between two ranks, so that a wait knows which peer it is waiting for, has a deadline, hears of an
/// abort, and sums in rank order.
class ProcessGroup final : public Group {
 public:
  ProcessGroup(ProcessJob& job, std::unique_ptr<Channel> channel, std::string name, int rank, std::vector<int> world_ranks);
  ~ProcessGroup() override;

  std::string death() override { return job_.death(); }
  using Group::set_machines;

 private:
  /// A process cannot leave a message half sent: the whole job ends, not this group alone.
  void do_abort(const std::string& reason) noexcept override { job_.abort(reason); }
  void do_barrier() override;
  void do_broadcast(at::Tensor& tensor, int root) override;
  void do_all_reduce(at::Tensor& tensor, ReduceOp op) override;
  void do_all_gather(at::Tensor& out, const at::Tensor& in) override;
  void do_reduce_scatter(at::Tensor& out, const at::Tensor& in) override;
  void do_all_to_all_v(std::span<const std::byte> from, std::span<const int64_t> send_bytes, std::span<std::byte> to,
                       std::span<const int64_t> receive_bytes) override;
  void do_send(const at::Tensor& tensor, int to, int tag) override;
  void do_receive(at::Tensor& tensor, int from, int tag) override;
  bool do_arrived(int from, int tag) override;
  std::unique_ptr<Group> do_split(int color, const std::string& name) override;

  template <class ToSend, class ToReceive>
  void exchange_with_all(const char* op, const ToSend& to_send, const ToReceive& to_receive);
  std::unique_ptr<Requests> begin(const char* op);
  void finish(Requests& requests, const char* op);
  [[noreturn]] void late(Requests& requests, const char* op);
  [[noreturn]] void fail(const std::string& reason);
  void throw_if_dead(const char* op);
  std::string ranks(std::vector<int> of) const;
  std::vector<const void*> blocks(const void* data, int64_t bytes) const;

  ProcessJob& job_;  // outlives every group: both live inside run_as_rank
  const std::unique_ptr<Channel> channel_;
  int tag_ = 0;
};

/// All processes of the job, which must outlive the group and those split from it. Collective.
std::unique_ptr<Group> process_world(ProcessJob& job);

}  // namespace tandem::comm
