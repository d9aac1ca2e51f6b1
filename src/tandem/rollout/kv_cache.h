// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tensors of the paged KV cache: blocks of a fixed number of tokens, in every layer of this rank.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tandem/device/arena.h"
#include "tandem/model/kernel/attention.h"

namespace tandem::rollout {

struct CacheShape {
  int64_t num_layers;
  model::kernel::AttentionShape attention;
  int64_t block_tokens;
  c10::ScalarType dtype;

  int64_t bytes_per_block() const {
    return 2 * num_layers * attention.num_kv_heads * attention.head_dim * block_tokens * static_cast<int64_t>(c10::elementSize(dtype));
  }
};

/// Ownership  the tensors live in the arena under "kv_cache", at addresses that stay from open() to open(). Who holds which block is the
///            scheduler's business.
/// Threads    one.
/// Blocking   close() waits for the device.
/// Errors     open: those of Region::back; then it has no memory.
/// Read next  block_ledger.h (who holds a block, and what is in it)
class KvCache {
 public:
  /// Without memory yet. `has_spare`: with one block more, that tokens which nobody wants may write to.
  KvCache(const model::kernel::AttentionKernels& kernels, const CacheShape& shape, int64_t num_blocks, device::Arena& arena,
          bool has_spare = false);

  /// Memory, of zeros.
  void open();
  /// What it held is lost.
  void close();
  bool is_open() const { return is_open_; }

  /// Copies what block `from` holds, in every layer.
  void copy(int32_t from, int32_t to);
  int64_t num_blocks() const { return num_blocks_; }
  int64_t block_tokens() const { return block_tokens_; }
  int64_t spare_block() const { return num_blocks_; }
  model::kernel::PagedCache layer(int64_t index) const;

 private:
  int64_t block_tokens_, num_blocks_;
  std::vector<device::Region> keys_, values_;  // per layer
  bool is_open_ = false;
};

}  // namespace tandem::rollout
