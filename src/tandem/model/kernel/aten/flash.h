// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention by libtorch's flash kernels: rows in half precision, on CUDA alone. What they do not take, attention.cpp computes.

#include <optional>

#include "tandem/model/kernel/attention.h"

namespace tandem::model::kernel::aten {

/// Whether rows like these are theirs.
bool flash_serves(const at::Tensor& rows, const AttentionShape& shape);

/// Stems and branches as segments that see themselves causally, and, of trees with branches, the branches as rows that see all of a stem.
struct FlashPlan {
  at::Tensor bounds;                     ///< int32: where segments begin, and the last ends
  int64_t longest = 0;
  at::Tensor branch_rows, stem_rows;     ///< int64, tree by tree; undefined without branches
  at::Tensor branch_bounds, stem_bounds; ///< int32
  int64_t most_branch_tokens = 0, longest_stem = 0;
};
FlashPlan flash_plan(const Trees& trees, at::Device device);

/// As AttentionKernels::packed and packed_backward, of all tokens. The same bits each time.
at::Tensor flash_packed(const AttentionRows& in, const FlashPlan& plan, const AttentionShape& shape, at::Tensor* lse_ON);
void flash_packed_backward(const AttentionRows& in, const AttentionOutput& out, const FlashPlan& plan, const AttentionShape& shape,
                           const AttentionRows& d_in);

/// Tokens that attend one by one, cut where the blocks of the cache end: C parts for each of R tokens, P = R C of them.
struct FlashPages {
  int64_t block_tokens = 0, num_parts = 1;  ///< of a block; C
  at::Tensor row_P;          ///< int64: of the tokens
  at::Tensor bounds;         ///< int32 [P + 1]: 0, 1, ..., P
  at::Tensor begin_P1;       ///< int32 [P + 1]: where the block begins in the cache; the last is any
  at::Tensor used_P;         ///< int32: keys of the block that the token sees; 0 where it has no such part
};
/// Of which each token sees no key yet.
FlashPages flash_pages(int64_t num_tokens, int64_t num_parts, int64_t block_tokens, at::Device device);
/// From tables[R, C] (int32) and seen[R] (int64) on the host.
void flash_refill(FlashPages& pages, const at::Tensor& tables_RC, const at::Tensor& seen_R);

/// The mix of a token's parts from that of each, o[P,N,D] and lse[N,P]: o[R, N D].
using CombineParts = at::Tensor (*)(const at::Tensor& o_PND, const at::Tensor& lse_NP, const FlashPages& pages);
at::Tensor combine_parts(const at::Tensor& o_PND, const at::Tensor& lse_NP, const FlashPages& pages);
/// o[R,Q] of R such tokens; keys and values as the cache has them.
at::Tensor flash_paged(const at::Tensor& q_RQ, const PagedCache& cache, const FlashPages& pages, const AttentionShape& shape,
                       CombineParts combine);

}  // namespace tandem::model::kernel::aten
