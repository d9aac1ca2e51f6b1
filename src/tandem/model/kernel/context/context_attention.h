// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention over a batch whose tokens are dealt over ranks: each computes its own, and they bring keys and values together.
//
// T packed tokens, of which O are this rank's; rows of qkv as in attention.h.

#include <ATen/core/Tensor.h>

#include "tandem/comm/group.h"
#include "tandem/model/kernel/context/share.h"

namespace tandem::model::kernel {

/// The ranks that share a batch. Uses the group, which must outlive the backward pass.
struct ContextParallel {
  comm::Group* group = nullptr;
  ContextShare share;
};

/// o[O,Q]: causal attention of this rank's queries, O = share.num_tokens(rank), over the whole batch. Keys and values travel in
/// their dtype: one all-gather of ranks * most_tokens rows here, one reduce-scatter of as many in the backward pass.
/// Collective over the group in both, also for a rank without tokens.
at::Tensor context_attention(const at::Tensor& qkv_OW, const Trees& trees, const AttentionShape& shape, const ContextParallel& parallel,
                             bool parity);

}  // namespace tandem::model::kernel
