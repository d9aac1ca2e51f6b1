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

/// Tokens [begin, begin + length).
struct TokenRun {
  int64_t begin, length;
};

/// Queries of some tokens, keys and values of all: rows of [query heads] and of [key heads | value heads], which may be parts of
/// wider rows. The O tokens of the queries are those of `own`, rising runs that do not touch, end to end.
struct AttentionRows {
  at::Tensor q_OQ, kv_TK;
  std::vector<TokenRun> own;
};
/// All tokens' queries, as views of qkv.
AttentionRows all_rows_of(const at::Tensor& qkv_TW, const AttentionShape& shape);

/// o[O,Q]; lse[O,heads] (fp32) is filled for the backward pass if not null. Blocks of query rows times the keys before them.
at::Tensor packed_attention(const AttentionRows& in, const Trees& trees, const AttentionShape& shape, at::Tensor* lse_ON);

/// The same values computed row by row as decode does, bit for bit, whichever queries are here; for parity mode.
at::Tensor packed_attention_by_row(const AttentionRows& in, const Trees& trees, const AttentionShape& shape);

/// What the forward pass gave, and the gradient of it. lse may be undefined; then it is recomputed.
struct AttentionOutput {
  at::Tensor o_OQ, lse_ON, d_o_OQ;
};
/// Writes the gradients of the queries and those queries' part of the gradients of all keys and values; the rows of d_q and d_kv
/// may be parts of wider rows.
void packed_attention_backward(const AttentionRows& in, const AttentionOutput& out, const Trees& trees, const AttentionShape& shape,
                               const AttentionRows& d_in);

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
