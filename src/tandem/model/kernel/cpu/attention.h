// SPDX-License-Identifier: Apache-2.0
#pragma once
// Causal attention in blocks of queries on this processor, as AttentionKernels has it. A cache's keys lie
// [block][kv_head][block_tokens/16][D][16], its values [block][kv_head][block_tokens][D].

#include "tandem/model/kernel/attention.h"

namespace tandem::model::kernel::cpu {

/// o[O,Q]: blocks of query rows times the keys before them.
at::Tensor packed_attention(const AttentionRows& in, const PackedPlan& plan, const AttentionShape& shape, at::Tensor* lse_ON);
at::Tensor packed_attention_by_row(const AttentionRows& in, const PackedPlan& plan, const AttentionShape& shape);
void packed_attention_backward(const AttentionRows& in, const AttentionOutput& out, const PackedPlan& plan, const AttentionShape& shape,
                               const AttentionRows& d_in);

/// Keys that lie side by side in a cache; its blocks hold multiples of them.
inline constexpr int64_t kLaneTokens = 16;
std::vector<int64_t> cache_shape(int64_t num_blocks, int64_t block_tokens, const AttentionShape& shape);
std::shared_ptr<const PagedPlan> plan_paged(PagedTokens tokens, at::Device device);
/// Threads: dynamic, but a token's result does not depend on who computes it.
at::Tensor paged_attention(const at::Tensor& qkv_TW, const PagedPlan& plan, const AttentionShape& shape, const PagedCache& cache);

}  // namespace tandem::model::kernel::cpu
