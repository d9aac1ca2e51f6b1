// SPDX-License-Identifier: Apache-2.0
#pragma once
// The paged KV cache: blocks of a fixed number of tokens, counted by reference so that the samples of a group share the
// blocks of their prompt.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tandem/device/arena.h"
#include "tandem/model/kernel/rows.h"

namespace tandem::rollout {

struct CacheShape {
  int64_t num_layers, num_kv_heads, head_dim, heads_per_kv, block_tokens;
  c10::ScalarType dtype;

  int64_t bytes_per_block() const {
    return 2 * num_layers * num_kv_heads * head_dim * block_tokens * static_cast<int64_t>(c10::elementSize(dtype));
  }
};

/// Ownership  the cache lives in the arena under "kv_cache"; block ids are handed out and must be released.
/// Threads    one.
/// Errors     none: try_allocate says when nothing is left.
class BlockPool {
 public:
  BlockPool(const CacheShape& shape, int64_t num_blocks, device::Arena& arena);

  /// A block with one reference, or -1 if none is free.
  int32_t try_allocate();
  void share(int32_t block);
  void release(int32_t block);
  /// Copies what `from` holds, in every layer.
  void copy(int32_t from, int32_t to);

  bool shared(int32_t block) const { return references_[static_cast<size_t>(block)] > 1; }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t num_blocks() const { return static_cast<int64_t>(references_.size()); }
  int64_t block_tokens() const { return shape_.block_tokens; }
  model::kernel::PagedCache layer(int64_t index) const;

 private:
  CacheShape shape_;
  std::vector<at::Tensor> keys_, values_;  // per layer; see model::kernel::PagedCache for the order inside
  std::vector<int32_t> references_, free_;
};

}  // namespace tandem::rollout
