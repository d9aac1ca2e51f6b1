// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory with owners and budgets. Weights, gradients, optimizer state and the KV cache are views of an Arena, so that who
// holds what, and the most that was ever held, is known at every moment.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tandem::device {

/// What a block of memory is for; the name becomes the metric `memory/<owner>_bytes`.
using Owner = std::string;

/// Ownership  a tensor from allocate() keeps its bytes mapped; when its last reference goes, the pages go back to the system.
/// Threads    any.
/// Errors     UserError when a budget would be exceeded: names owner, budget and what is held.
class Arena {
 public:
  /// `budget_bytes` 0 means no bound. `name` is "device" or "host".
  explicit Arena(std::string name, int64_t budget_bytes = 0);

  /// A zeroed, 64-byte aligned tensor counted under `owner`.
  at::Tensor allocate(const Owner& owner, std::vector<int64_t> shape, c10::ScalarType dtype);

  /// Counts bytes under `owner` that somebody else allocated (or freed: less than 0). Budgets do not bound them.
  void count(const Owner& owner, int64_t bytes);

  int64_t bytes() const;
  int64_t bytes(const Owner& owner) const;
  int64_t peak_bytes() const;
  std::map<Owner, int64_t> by_owner() const;
  const std::string& name() const { return name_; }

 private:
  struct Account;
  std::string name_;
  std::shared_ptr<Account> account_;
};

}  // namespace tandem::device
