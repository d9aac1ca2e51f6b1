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

/// Some ranks that communicate in lock step.
///
/// Ownership  tensors stay the caller's; they must live until the call returns. Contiguous CPU tensors of any dtype for
///            moves; float32, float64, bfloat16 and int64 for reductions. bfloat16 sums accumulate in float32.
/// Threads    one thread per rank; all ranks call the same operations in the same order.
/// Blocking   every call waits for the peers, at most the group's deadline.
/// Errors     PeerError naming rank, operation and peer when a peer fails, aborts or is late; after it the group is dead and
///            every later call throws the same error.
/// Numerics   sums run in rank order, so all ranks get the same bits, whatever the backend.
/// Read next  launch.h (ranks as threads or processes), mesh.h (named axes).
class Group {
 public:
  virtual ~Group() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;

  virtual void barrier() = 0;
  virtual void broadcast(at::Tensor& tensor, int root) = 0;
  virtual void all_reduce(at::Tensor& tensor, ReduceOp op) = 0;
  /// out: size() * in.numel() elements, rank by rank.
  virtual void all_gather(at::Tensor& out, const at::Tensor& in) = 0;
  /// in: size() * out.numel() elements; out gets the sum of block rank().
  virtual void reduce_scatter(at::Tensor& out, const at::Tensor& in) = 0;
  /// Bytes to and from each rank, laid end to end in rank order. Sizes must agree pairwise.
  virtual void all_to_all_v(std::span<const std::byte> send, std::span<const int64_t> send_bytes, std::span<std::byte> receive,
                            std::span<const int64_t> receive_bytes) = 0;

  /// Ranks that pass the same colour form a new group, ordered by rank. Collective.
  virtual std::unique_ptr<Group> split(int color, const std::string& name) = 0;
  /// Marks the group and its children dead with `reason`; wakes everyone who waits. Never throws.
  virtual void abort(const std::string& reason) noexcept = 0;
};

/// Gathers one byte string per rank, in rank order.
std::vector<std::vector<std::byte>> all_gather_bytes(Group& group, std::span<const std::byte> mine);

}  // namespace tandem::comm
