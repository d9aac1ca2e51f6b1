// SPDX-License-Identifier: Apache-2.0
#pragma once
// The products inside attention of bfloat16 rows, by libtorch's block kernels (see brgemm.h), on the calling thread. The scores of a block
// of queries are a matrix of R rows by `keys` columns; the kernels want both filled up, so that few kernels serve all sequences.

#include <cstdint>

#include "tandem/model/kernel/cpu/rows.h"

namespace tandem::model::kernel::cpu {

/// The filled-up matrix of scores, or of what is made of them. What is filled up must be 0 in what is multiplied: rows of queries, of
/// their gradients and of probabilities from R, columns of probabilities from `keys`.
struct ScoreBlocks {
  int64_t rows;      ///< of a multiple of kRowStep
  int64_t keys;      ///< as they are
  int64_t head_dim;  ///< D, even
  int64_t stride;    ///< elements between rows

  static constexpr int64_t kRowStep = 32, kKeyStep = 64;
  ScoreBlocks(int64_t R, int64_t keys, int64_t D);
  int64_t filled_keys() const;  ///< to a multiple of kKeyStep; at most the stride

  /// scores[rows, filled keys] = q[rows, D] k[keys, D]^T; rows of k are k_stride apart, an even number.
  void multiply_by_keys(const Half* q, const Half* k, int64_t k_stride, float* scores) const;
  /// out[rows, D] = p[rows, filled keys] v[keys, D].
  void mix(const Half* p, const Half* v, int64_t v_stride, float* out) const;
  /// out[filled keys, D] += p[rows, filled keys]^T q[rows, D].
  void add_transposed_mix(const Half* p, const Half* q, float* out) const;
};

}  // namespace tandem::model::kernel::cpu
