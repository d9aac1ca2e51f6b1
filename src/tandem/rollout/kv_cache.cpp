// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/kv_cache.h"

namespace tandem::rollout {

KvCache::KvCache(const model::kernel::AttentionKernels& kernels, const CacheShape& shape, int64_t num_blocks, device::Arena& arena,
                 bool has_spare)
    : block_tokens_(shape.block_tokens), num_blocks_(num_blocks) {
  const std::vector<int64_t> layer_shape = kernels.cache_shape(num_blocks + has_spare, shape.block_tokens, shape.attention);
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    keys_.push_back(arena.allocate("kv_cache", layer_shape, shape.dtype));
    values_.push_back(arena.allocate("kv_cache", layer_shape, shape.dtype));
  }
}

void KvCache::copy(int32_t from, int32_t to) {
  for (auto* side : {&keys_, &values_})
    for (at::Tensor& layer : *side) layer.select(0, to).copy_(layer.select(0, from));
}

model::kernel::PagedCache KvCache::layer(int64_t index) const {
  const auto i = static_cast<size_t>(index);
  return {keys_[i], values_[i], block_tokens_};
}

}  // namespace tandem::rollout
