// SPDX-License-Identifier: Apache-2.0
#pragma once
// Causal attention over packed sequences, forward and backward, and the paged form of decode.
//
// T packed tokens; qkv_TW rows are [query heads | key heads | value heads], each D wide; o_TQ has the query heads alone.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tandem/model/kernel/rows.h"

namespace tandem::model::kernel {

struct AttentionShape {
  int64_t num_heads, num_kv_heads, head_dim;  ///< as this rank holds them
  float softmax_scale = 0;                    ///< of the scores; 0: 1 / sqrt(head_dim)

  int64_t group() const { return num_heads / num_kv_heads; }
  int64_t q_width() const { return num_heads * head_dim; }
  int64_t width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
  float scale() const;
};

/// A stem of tokens that sees itself causally, then branches, each of which sees the whole stem and after it itself: a prompt
/// and the samples that share it. They lie end to end from `begin`. A sequence on its own is a stem without branches.
struct Tree {
  int64_t begin, stem;
  std::vector<int64_t> branches;  ///< lengths
};
using Trees = std::vector<Tree>;
/// Sequences of these lengths, end to end, that share nothing.
Trees stems(std::span<const int64_t> lengths);

/// o[T,Q]; lse[T,heads] (fp32) is filled for the backward pass if defined. Blocks of query rows times the keys before them.
at::Tensor packed_attention(const at::Tensor& qkv_TW, const Trees& trees, const AttentionShape& shape, at::Tensor* lse_TN);

/// The same values computed row by row as decode does, bit for bit; for parity mode.
at::Tensor packed_attention_by_row(const at::Tensor& qkv_TW, const Trees& trees, const AttentionShape& shape);

/// d_qkv[T,W]. lse may be undefined; then it is recomputed.
at::Tensor packed_attention_backward(const at::Tensor& d_o_TQ, const at::Tensor& o_TQ, const at::Tensor& qkv_TW, const at::Tensor& lse_TN,
                                     const Trees& trees, const AttentionShape& shape);

/// Where each of T tokens stands: its block table, how many keys it sees, and the cache slot its own key goes to.
struct PagedTokens {
  std::vector<const int32_t*> block_tables;
  std::vector<int64_t> positions;   ///< of the token in its sequence; it sees positions 0..position
  Trees whole;                      ///< sequences that start at position 0 here: they attend as packed ones, not row by row
};

/// Writes the keys and values of T tokens into the cache of one layer, then attends. Threads: dynamic, but a token's result
/// does not depend on who computes it.
at::Tensor paged_attention(const at::Tensor& qkv_TW, const PagedTokens& tokens, const AttentionShape& shape, const PagedCache& cache);

}  // namespace tandem::model::kernel
