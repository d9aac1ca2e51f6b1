// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/block_pool.h"

#include "tandem/base/check.h"

namespace tandem::rollout {

BlockPool::BlockPool(const CacheShape& shape, int64_t num_blocks, device::Arena& arena) : shape_(shape) {
  const std::vector<int64_t> layer_shape = {num_blocks, shape.num_kv_heads, shape.block_tokens, shape.head_dim};
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    keys_.push_back(arena.allocate("kv_cache", layer_shape, shape.dtype));
    values_.push_back(arena.allocate("kv_cache", layer_shape, shape.dtype));
  }
  references_.assign(static_cast<size_t>(num_blocks), 0);
  for (int64_t b = num_blocks - 1; b >= 0; --b) free_.push_back(static_cast<int32_t>(b));
}

int32_t BlockPool::try_allocate() {
  if (free_.empty()) return -1;
  const int32_t block = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(block)] = 1;
  return block;
}

void BlockPool::share(int32_t block) {
  TANDEM_CHECK(references_[static_cast<size_t>(block)] > 0, "block ", block, " is free");
  ++references_[static_cast<size_t>(block)];
}

void BlockPool::release(int32_t block) {
  int32_t& references = references_[static_cast<size_t>(block)];
  TANDEM_CHECK(references > 0, "block ", block, " released twice");
  if (--references == 0) free_.push_back(block);
}

void BlockPool::copy(int32_t from, int32_t to) {
  for (auto* side : {&keys_, &values_})
    for (at::Tensor& layer : *side) layer.select(0, to).copy_(layer.select(0, from));
}

model::kernel::PagedCache BlockPool::layer(int64_t index) const {
  const auto i = static_cast<size_t>(index);
  return {keys_[i].data_ptr(), values_[i].data_ptr(), shape_.num_kv_heads, shape_.head_dim, shape_.block_tokens, shape_.heads_per_kv};
}

}  // namespace tandem::rollout
