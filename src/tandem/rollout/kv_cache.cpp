// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/kv_cache.h"

namespace tandem::rollout {

KvCache::KvCache(const model::kernel::AttentionKernels& kernels, const CacheShape& shape, int64_t num_blocks, device::Arena& arena,
                 bool has_spare)
    : block_tokens_(shape.block_tokens), num_blocks_(num_blocks) {
  const std::vector<int64_t> layer_shape = kernels.cache_shape(num_blocks + has_spare, shape.block_tokens, shape.attention);
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    keys_.push_back(arena.reserve("kv_cache", layer_shape, shape.dtype));
    values_.push_back(arena.reserve("kv_cache", layer_shape, shape.dtype));
  }
}

void KvCache::open() {
  try {
    for (auto* side : {&keys_, &values_})
      for (device::Region& layer : *side) layer.back();
  } catch (...) {
    close();
    throw;
  }
  is_open_ = true;
}

void KvCache::close() {
  is_open_ = false;
  for (auto* side : {&keys_, &values_})
    for (device::Region& layer : *side) layer.release();
}

void KvCache::copy(int32_t from, int32_t to) {
  for (const auto* side : {&keys_, &values_})
    for (const device::Region& layer : *side) layer.tensor().select(0, to).copy_(layer.tensor().select(0, from));
}

model::kernel::PagedCache KvCache::layer(int64_t index) const {
  const auto i = static_cast<size_t>(index);
  return {keys_[i].tensor(), values_[i].tensor(), block_tokens_};
}

}  // namespace tandem::rollout
