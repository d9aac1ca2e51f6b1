// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies that a process has, for itself and for those who ask it: a tensor cache that several threads may use.

#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/data/sample.h"
#include "tandem/queue/body/body.h"
#include "tandem/queue/body/tensor_cache.h"

namespace tandem::queue {

/// Fills a head with its body. Errors: InternalError for a row that is not there.
void add_body(data::Group& head, const TensorCache& bodies);

/// What a reader must know of rows that TensorCache::pack wrote.
struct RowsHead {
  int64_t num_rows = 0;
  std::vector<int64_t> lengths;  ///< of each field, one row after the other
  int64_t num_bytes = 0;
};

/// Threads    any.
/// Errors     as TensorCache.
class Store {
 public:
  explicit Store(std::vector<CacheField> fields) : rows_(std::move(fields)) {}

  /// In place of rows of these samples that are here. The columns are moved in.
  void put(std::span<const SampleId> samples, data::Fields columns);
  /// Known or not.
  void drop(std::span<const SampleId> samples);
  /// Packs the rows of the first of these samples: as many as have `most_bytes`, at least one. `room` is asked where to. Returns how many;
  /// 0 if one of them is not here.
  using Room = std::function<std::span<std::byte>(const RowsHead&)>;
  int64_t read(std::span<const SampleId> samples, int64_t most_bytes, const Room& room) const;
  /// All of them into `to`, in memory of their own. False if one is not here.
  bool copy(std::span<const SampleId> samples, TensorCache& to) const;
  int64_t num_held() const;
  int64_t schema() const { return rows_.schema(); }

 private:
  mutable std::mutex mutex_;
  TensorCache rows_;
};

}  // namespace tandem::queue
