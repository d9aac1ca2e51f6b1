// SPDX-License-Identifier: Apache-2.0
#pragma once
// Samples as benchmarks of the queue have them: tokens, log-probabilities and three numbers, which every process can compute, so that what
// arrives can be checked.

#include <cstdint>
#include <span>
#include <vector>

#include "tandem/queue/body/tensor_cache.h"

namespace tandem::bench {

/// What a stage reads of a sample.
struct Row {
  data::SampleId id;
  std::span<const int64_t> tokens;
  std::span<const float> logprobs;
  float reward;
  int64_t length, group;
};
/// Of a cache with SampleRows::fields().
Row row_of(const queue::TensorCache& cache, data::SampleId id);

/// What stands where. Groups have 8 samples.
struct SampleRows {
  int64_t seq = 0;
  bool ragged = false;           ///< an eighth of seq to all of it, uniformly; else seq
  std::vector<int64_t> lengths;  ///< in their place, one sample after the other; or empty
  uint64_t seed = 0;

  static constexpr int64_t kGroupSize = 8;
  static std::vector<queue::CacheField> fields();
  int64_t length(int64_t id) const;
  data::Fields columns_of(std::span<const data::SampleId> ids) const;
  /// Of the payload.
  int64_t num_bytes(std::span<const data::SampleId> ids) const;
  /// Errors: InternalError if it is another.
  void check(const Row& row) const;

 private:
  int64_t token(int64_t id, int64_t t) const;
  float logprob(int64_t id, int64_t t) const;
  static float reward(int64_t id);
};

}  // namespace tandem::bench
