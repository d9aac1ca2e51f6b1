// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decode steps of one shape, captured once and replayed: one launch for all operators of a step.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "tandem/device/graph.h"
#include "tandem/model/decoder.h"
#include "tandem/rollout/kv_cache.h"

namespace tandem::rollout {

/// Each token sees what its sequence has in the cache; a prompt that runs as a whole sees itself. Uses the cache and the decoder.
class PagedContext final : public model::AttentionContext {
 public:
  PagedContext(const KvCache& cache, const model::Decoder& decoder, std::shared_ptr<const model::kernel::PagedPlan> plan)
      : cache_(cache), decoder_(decoder), plan_(std::move(plan)) {}
  bool keeps_keys() const override { return true; }
  at::Tensor attend(int64_t layer, const at::Tensor& qkv, const model::kernel::AttentionShape& shape) override {
    return decoder_.kernels().attention().paged(qkv, *plan_, shape, cache_.layer(decoder_.place_of_layer(layer)));
  }

 private:
  const KvCache& cache_;
  const model::Decoder& decoder_;
  std::shared_ptr<const model::kernel::PagedPlan> plan_;
};

/// Tokens of a step, and the most blocks that one of them sees: as many as there are, or a few more.
struct GraphShape {
  int64_t num_tokens, num_blocks;
  auto operator<=>(const GraphShape&) const = default;
  /// The least of a few shapes that holds so many.
  static GraphShape around(int64_t num_tokens, int64_t num_blocks);
};

/// Ownership  uses decoder, weights and cache, which stay where they are while it lives.
/// Threads    one.
/// Errors     PeerError of what the device refuses.
class DecodeGraph {
 public:
  /// Whether the decoder's steps can be captured: on a device that has graphs, alone, and without experts, whose rows the host counts.
  static bool serves(const model::Decoder& decoder);

  /// One of `graphs`, in which nothing else is captured but decode steps of this cache.
  DecodeGraph(const GraphShape& shape, const model::Decoder& decoder, const model::ModelParameters& parameters, const KvCache& cache,
              device::Graphs& graphs);

  /// fp32 logits[R,V] of R tokens, one of each sequence; what they hold lasts until the next run of any of its graphs. `ids_R` may be
  /// there already, even if the host does not know them. Queued. Errors: InternalError for more than it has room for.
  at::Tensor run(const at::Tensor& ids_R, const model::kernel::PagedTokens& tokens);

 private:
  const GraphShape shape_;
  const int64_t spare_block_;
  const model::kernel::AttentionKernels& attention_;
  at::Tensor ids_T_, positions_T_;
  std::shared_ptr<model::kernel::PagedPlan> plan_;
  std::unique_ptr<device::Graph> graph_;
  at::Tensor logits_TV_;
};

}  // namespace tandem::rollout
