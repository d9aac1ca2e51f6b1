// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory with owners and budgets. Weights, gradients, optimizer state and the KV cache are views of an Arena, so that who
// holds what, and the most that was ever held, is known at every moment.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tandem::device {

/// What a block of memory is for; the name becomes the metric `memory/<owner>_bytes`.
using Owner = std::string;

/// A tensor at a fixed address whose memory comes and goes in chunks, so that views of it stay good. To touch what has no memory is a
/// fault, not a zero.
///
/// Ownership  shares the addresses with its tensor; they go when the last of both does. A default one has none.
/// Threads    one at a time.
/// Errors     back: UserError when the arena's budget would be exceeded, before anything is backed.
class Region {
 public:
  const at::Tensor& tensor() const { return tensor_; }
  int64_t num_chunks() const;
  int64_t chunk_bytes() const;  ///< of each but the last
  int64_t num_bytes() const;
  int64_t backed_bytes() const;
  bool is_backed(int64_t chunk) const;
  /// Nothing happens to what has memory already; what had none is zero.
  void back() { back(0, num_chunks()); }
  void back(int64_t first, int64_t last);
  /// The contents are lost.
  void release() { release(0, num_chunks()); }
  void release(int64_t first, int64_t last);

 private:
  friend class Arena;
  struct State;
  std::shared_ptr<State> state_;
  at::Tensor tensor_;
};

/// Ownership  a tensor from allocate() keeps its bytes mapped; when its last reference goes, the pages go back to the system.
/// Threads    any.
/// Errors     UserError when a budget would be exceeded: names owner, budget and what is held.
/// Read next  swappable.h
class Arena {
 public:
  /// `budget_bytes` 0 means no bound. `name` is "device" or "host"; what it holds is on `device`.
  explicit Arena(std::string name, int64_t budget_bytes = 0, at::Device device = at::kCPU);

  /// A zeroed, 64-byte aligned tensor counted under `owner`.
  at::Tensor allocate(const Owner& owner, std::vector<int64_t> shape, c10::ScalarType dtype);
  /// Addresses for such a tensor, without memory yet.
  Region reserve(const Owner& owner, std::vector<int64_t> shape, c10::ScalarType dtype);

  /// Counts bytes under `owner` that somebody else allocated (or freed: less than 0). Budgets do not bound them.
  void count(const Owner& owner, int64_t bytes);

  int64_t bytes() const;
  int64_t bytes(const Owner& owner) const;
  int64_t peak_bytes() const;
  /// The most that was held since the last call, or the start.
  int64_t take_stage_peak_bytes();
  /// What the budget has left; nullopt where there is none.
  std::optional<int64_t> left_bytes() const;
  std::map<Owner, int64_t> by_owner() const;
  const std::string& name() const { return name_; }
  at::Device device() const { return device_; }

 private:
  friend struct Region::State;
  struct Account;
  std::string name_;
  at::Device device_;
  std::shared_ptr<Account> account_;
};

}  // namespace tandem::device
