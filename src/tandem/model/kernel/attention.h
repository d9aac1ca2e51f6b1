// SPDX-License-Identifier: Apache-2.0
#pragma once
// Causal attention over packed sequences, forward and backward, and over a paged cache.
//
// T packed tokens; qkv_TW rows are [query heads | key heads | value heads], each D wide; o_TQ has the query heads alone.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

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

/// Who sees whom in a batch, and which tokens' queries are here: rising runs that do not touch, end to end. A backend adds what it makes of
/// that once, for all layers.
struct PackedPlan {
  PackedPlan(Trees all, std::vector<TokenRun> here) : trees(std::move(all)), own(std::move(here)) {}
  virtual ~PackedPlan() = default;
  Trees trees;
  std::vector<TokenRun> own;
};

/// O queries of the plan's own tokens, keys and values of all T: rows of [query heads] and of [key heads | value heads], which may be
/// parts of wider rows.
struct AttentionRows {
  at::Tensor q_OQ, kv_TK;
};
/// The columns of qkv.
AttentionRows columns_of(const at::Tensor& qkv_TW, const AttentionShape& shape);

/// What the forward pass gave, and the gradient of it. lse may be undefined; then it is recomputed.
struct AttentionOutput {
  at::Tensor o_OQ, lse_ON, d_o_OQ;
};

/// Where each of T tokens stands, on the host.
struct PagedTokens {
  at::Tensor block_tables_SB;  ///< int32: the cache blocks of each of S sequences, in order, filled up with any
  at::Tensor sequence_T;       ///< int64: whose blocks
  at::Tensor positions_T;      ///< int64: of the token in its sequence; it sees positions 0 to its own
  Trees whole;                 ///< sequences that start at position 0 here: they attend as packed ones, not row by row
};
/// The same, and what a backend adds once, for all layers.
struct PagedPlan {
  explicit PagedPlan(PagedTokens all) : tokens(std::move(all)) {}
  virtual ~PagedPlan() = default;
  PagedTokens tokens;
};

/// Of one layer; blocks come first in both tensors, the rest is the backend's.
struct PagedCache {
  at::Tensor keys, values;
  int64_t block_tokens;
};

struct AttentionKernels {
  std::shared_ptr<const PackedPlan> (*plan_packed)(Trees trees, std::vector<TokenRun> own, at::Device device);
  /// o[O,Q]; lse[O,heads] (fp32) is filled for the backward pass if not null.
  at::Tensor (*packed)(const AttentionRows& in, const PackedPlan& plan, const AttentionShape& shape, at::Tensor* lse_ON);
  /// The same values computed row by row as `paged` does, bit for bit, whichever queries are here; for parity mode.
  at::Tensor (*packed_by_row)(const AttentionRows& in, const PackedPlan& plan, const AttentionShape& shape);
  /// Writes the gradients of the queries and those queries' part of the gradients of all keys and values; the rows of `d_in` may be
  /// parts of wider rows.
  void (*packed_backward)(const AttentionRows& in, const AttentionOutput& out, const PackedPlan& plan, const AttentionShape& shape,
                          const AttentionRows& d_in);

  /// The shape of a layer's keys, and of its values: `num_blocks` blocks of block_tokens tokens, of which it takes multiples alone.
  std::vector<int64_t> (*cache_shape)(int64_t num_blocks, int64_t block_tokens, const AttentionShape& shape);
  int64_t block_multiple;
  /// Tokens of a block that it reads fastest on such a device.
  int64_t (*block_tokens)(at::DeviceType type);
  std::shared_ptr<const PagedPlan> (*plan_paged)(PagedTokens tokens, at::Device device);
  /// For work that is captured once and replayed: a plan of `num_tokens` tokens that attend one by one, each to `num_blocks` blocks of
  /// `block_tokens` at most, whose tensors keep their addresses. Null: the backend has none.
  std::shared_ptr<PagedPlan> (*plan_fixed)(int64_t num_tokens, int64_t num_blocks, int64_t block_tokens, at::Device device);
  /// Fills it, in the device's order. As many tokens, none whole, and tables of as many blocks.
  void (*refill)(PagedPlan& plan, const PagedTokens& tokens);
  /// Writes the keys and values of T tokens into the cache of one layer, then attends: o[T,Q]. A token's result does not depend on its
  /// company, but for sequences that are whole.
  at::Tensor (*paged)(const at::Tensor& qkv_TW, const PagedPlan& plan, const AttentionShape& shape, const PagedCache& cache);
};

}  // namespace tandem::model::kernel
