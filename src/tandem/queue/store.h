// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies that a process has, for itself and for those who ask it: a tensor cache that several threads may use.

#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
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
  /// Rows of the first of these samples, end to end: as many as have `most_bytes`, at least one. Nothing if one of those is not here.
  std::optional<data::Fields> read(std::span<const SampleId> samples, int64_t most_bytes = std::numeric_limits<int64_t>::max()) const;
  /// Whether these are so many rows of all its fields.
  bool fits(const data::Fields& columns, int64_t rows) const;
  int64_t num_held() const;

 private:
  mutable std::mutex mutex_;
  TensorCache rows_;
};

}  // namespace tandem::queue
