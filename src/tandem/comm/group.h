// SPDX-License-Identifier: Apache-2.0
#pragma once
// The seam between Tandem and whatever moves bytes between ranks. One small abstract class; backend/ holds the hows.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tandem::comm {

enum class ReduceOp { kSum, kMax };
inline constexpr int kMaxTag = (1 << 20) - 1;

/// An operation on a device that was begun. The group outlives it.
///
/// Threads  one at a time. Of a rank's threads one alone calls wait(): they share the device's queue, and where two have it wait, in other
///          orders on other ranks, the devices wait for each other.
class Work {
 public:
  virtual ~Work() = default;
  /// What is queued on the device from here on comes behind it; the host does not wait. Errors: PeerError once the group is dead.
  virtual void wait() = 0;
};

/// Some ranks that communicate in lock step.
///
/// Ownership  tensors stay the caller's; they must live until the call returns. Contiguous tensors on device(), the CPU
///            but for c10d, of any dtype for moves; float32, float64, bfloat16 and int64 for reductions. Where device() is the CPU,
///            tensors of another go by the carrier of that device, or, without one, by way of the CPU.
/// Threads    one thread at a time per rank and group, but any thread, not only the one that split it; different groups may be
///            used at once. All ranks call the same collectives in the same order; messages stand outside that order.
/// Blocking   every call but send, arrived and begin_reduce_scatter waits for the peers, at most the group's deadline. What was begun has
///            a deadline, too, from when what was begun before it is done.
/// Errors     PeerError naming rank, operation and peer when a peer fails, aborts or is late; after it the group is dead and
///            every later call throws the same error. Ranks in errors are those of the world, whatever the group. What was begun and
///            fails gives worthless numbers: whatever a rank says after that, it ends as the group did (launch.h).
/// Numerics   sums run in rank order, so all ranks get the same bits, whatever the backend; bfloat16 sums accumulate in float32.
///            Not so c10d: sum and maximum are those of NCCL or HCCL, whose order follows from the devices' topology, so bits
///            differ from other backends, a bfloat16 sum may be rounded at each step, and a maximum may lose a NaN.
/// Read next  launch.h (ranks as threads or processes), mesh.h (named axes), docs/communication.md (bytes).
class Group {
 public:
  virtual ~Group() = default;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::string& name() const { return name_; }
  /// Where tensors are.
  at::Device device() const { return device_; }
  /// Where tensors of a device stay on their way: its carrier's, or else device().
  at::Device nearest_device() const { return carrier_ ? carrier_->device_ : device_; }
  /// The rank in the world of a rank of this group.
  int world_rank(int rank) const { return world_ranks_[static_cast<size_t>(rank)]; }
  /// The number of the machine that a rank of this group runs on; machines are numbered as their first ranks of the world are. 0 where
  /// the backend does not know: local, which has one, and c10d.
  int machine(int rank) const { return machines_ ? (*machines_)[static_cast<size_t>(world_rank(rank))] : 0; }

  void barrier();
  void broadcast(at::Tensor& tensor, int root);
  void all_reduce(at::Tensor& tensor, ReduceOp op);
  /// out: size() * in.numel() elements, rank by rank.
  void all_gather(at::Tensor& out, const at::Tensor& in);
  /// in: size() * out.numel() elements; out gets the sum of block rank().
  void reduce_scatter(at::Tensor& out, const at::Tensor& in);
  /// The same, begun behind what is queued on the device, which goes on meanwhile: both tensors live, and `in` stays as it is, until
  /// Work::wait(). Null where it is done.
  std::unique_ptr<Work> begin_reduce_scatter(at::Tensor& out, const at::Tensor& in);
  /// Bytes on device() to and from each rank, laid end to end in rank order. Sizes must agree pairwise; the buffers do not overlap.
  void all_to_all_v(std::span<const std::byte> send, std::span<const int64_t> send_bytes, std::span<std::byte> receive,
                    std::span<const int64_t> receive_bytes);
  /// The same with the bytes of two tensors of one device.
  void all_to_all_v(const at::Tensor& send, std::span<const int64_t> send_bytes, at::Tensor& receive,
                    std::span<const int64_t> receive_bytes);

  /// Buffered: returns once the bytes are kept or under way, so that two ranks may send to each other first. The peer takes
  /// it with the same tag, 0 to kMaxTag; several of one tag arrive in order.
  void send(const at::Tensor& tensor, int to, int tag);
  /// Waits for it, at most the deadline. Errors: PeerError naming rank, op, peer; also where the size differs.
  void receive(at::Tensor& tensor, int from, int tag);
  /// Whether receive() would find such a message of a tensor on device(). Waits for nobody. Errors: PeerError once the group is dead.
  bool arrived(int from, int tag);

  /// Ranks that pass the same colour form a new group, ordered by rank. Collective.
  std::unique_ptr<Group> split(int color, const std::string& name);
  /// Marks the group and its children dead with `reason`; wakes everyone who waits. Any thread. Never throws.
  void abort(const std::string& reason) noexcept;
  /// Why the group is dead, as far as this rank has heard; "" while it lives. Any thread.
  virtual std::string death() = 0;

  /// Tensors of `carrier`'s device, which is not this one's, go by it from here on; so they do in groups split from here on. It has the
  /// same ranks in the same order. Null: by way of the CPU again. launch.h:carry_devices makes one.
  void carry_by(std::unique_ptr<Group> carrier);

  /// Its ranks compute each layer together, so that an exchange is part of the work: take_waited_s() does not count it.
  void works_as_one() { is_one_worker_ = true; }

 protected:
  /// world_ranks: those of the members, in the order of their ranks here.
  Group(std::string name, int rank, std::vector<int> world_ranks, at::Device device = at::kCPU);
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  /// Machines by rank of the world; for the world alone, groups split from it get them.
  void set_machines(std::vector<int> by_world_rank);
  /// `rank 3: all_reduce in group 'tp'`, how an error of this rank begins.
  std::string place(const char* op) const;
  /// The ranks that pass the same colour, by their ranks here and in the world, and this rank's number among them. Collective.
  struct Members {
    int rank = 0;
    std::vector<int> ranks, world_ranks;
  };
  Members members_of(int color);

 private:
  // What a backend does; the public operation of the same name has checked the arguments.
  virtual void do_abort(const std::string& reason) noexcept = 0;
  virtual void do_barrier() = 0;
  virtual void do_broadcast(at::Tensor& tensor, int root) = 0;
  virtual void do_all_reduce(at::Tensor& tensor, ReduceOp op) = 0;
  virtual void do_all_gather(at::Tensor& out, const at::Tensor& in) = 0;
  virtual void do_reduce_scatter(at::Tensor& out, const at::Tensor& in) = 0;
  virtual std::unique_ptr<Work> do_begin_reduce_scatter(at::Tensor& out, const at::Tensor& in);
  virtual void do_all_to_all_v(std::span<const std::byte> send, std::span<const int64_t> send_bytes, std::span<std::byte> receive,
                               std::span<const int64_t> receive_bytes) = 0;
  virtual void do_send(const at::Tensor& tensor, int to, int tag) = 0;
  virtual void do_receive(at::Tensor& tensor, int from, int tag) = 0;
  virtual bool do_arrived(int from, int tag) = 0;
  virtual std::unique_ptr<Group> do_split(int color, const std::string& name) = 0;

  void exchange(Group& way, std::span<const std::byte> send, std::span<const int64_t> send_bytes, std::span<std::byte> receive,
                std::span<const int64_t> receive_bytes);
  // The group that takes it: this one or the carrier; null: none does, and it goes by way of the CPU.
  Group* way_of(const at::Tensor& tensor);
  void check_blocks(const at::Tensor& whole, const at::Tensor& part, const char* op) const;
  void check_message(const at::Tensor& tensor, int peer, int tag) const;
  void check_peer(int peer, int tag) const;

  const std::string name_;
  const int rank_;
  const std::vector<int> world_ranks_;
  const at::Device device_;
  std::shared_ptr<const std::vector<int>> machines_;  // by world rank; shared with the groups split from this one
  bool is_one_worker_ = false;
  std::unique_ptr<Group> carrier_;
};

/// Seconds that this thread has spent in calls that wait for peers, since it last asked, in any group but those that work as one.
/// What moves the bytes is in them.
double take_waited_s();
/// The same, and it goes on counting.
double waited_s_so_far();
/// This thread spent so many seconds waiting for others without a call of a group.
void count_waited(double seconds);

/// Gathers one byte string per rank, in rank order.
std::vector<std::vector<std::byte>> all_gather_bytes(Group& group, std::span<const std::byte> mine);

/// The largest number n such that each block of n ranks, [0, n), [n, 2n) ..., is of one machine: the ranks of a machine where all have
/// equally many, else their greatest common divisor.
int ranks_per_machine(const Group& group);

}  // namespace tandem::comm
