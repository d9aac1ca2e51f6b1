// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies that a process has, for itself and for those who ask it: a tensor cache that several threads may use.

#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "tandem/queue/tensor_cache.h"

namespace tandem::queue {

/// Threads    any.
/// Errors     as TensorCache.
class Store {
 public:
  explicit Store(std::vector<CacheField> fields) : rows_(std::move(fields)) {}

  /// In place of rows of these samples that are here. The columns are moved in.
  void put(std::span<const SampleId> samples, data::Fields columns);
  /// Known or not.
  void drop(std::span<const SampleId> samples);
  /// Rows of these samples, end to end; nothing if one is not here.
  std::optional<data::Fields> read(std::span<const SampleId> samples) const;
  int64_t num_held() const;

 private:
  mutable std::mutex mutex_;
  TensorCache rows_;
};

}  // namespace tandem::queue
