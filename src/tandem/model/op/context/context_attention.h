// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention over a batch whose tokens are dealt over ranks: each computes its own, and they bring keys and values together.
//
// T packed tokens, of which O are this rank's; rows of qkv as in attention.h.

#include <ATen/core/Tensor.h>

#include <memory>

#include "tandem/comm/group.h"
#include "tandem/model/op/context/share.h"
#include "tandem/model/op/function.h"

namespace tandem::model::op {

/// The ranks that share a batch. Uses the group, which must outlive the backward pass.
struct ContextParallel {
  comm::Group* group = nullptr;
  ContextShare share;
};

/// What a rank needs of it for all layers.
struct ContextPlan {
  comm::Group* group;
  std::shared_ptr<const kernel::PackedPlan> packed;  ///< with this rank's tokens as its own
  int64_t most_tokens;                               ///< of any rank
  at::Tensor row_T;  ///< int64: of each token where the ranks lie side by side, each filled up to most_tokens
};
ContextPlan context_plan(const Kernels& k, kernel::Trees trees, const ContextParallel& parallel);

/// o[O,Q]: causal attention of this rank's queries, O = share.num_tokens(rank), over the whole batch. Keys and values travel in
/// their dtype: one all-gather of ranks * most_tokens rows here, one reduce-scatter of as many in the backward pass.
/// Collective over the group in both, also for a rank without tokens.
at::Tensor context_attention(const Kernels& k, const at::Tensor& qkv_OW, std::shared_ptr<const ContextPlan> plan,
                             const AttentionShape& shape);

}  // namespace tandem::model::op
