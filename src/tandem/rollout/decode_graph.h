// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decode steps of a few shapes, each captured once and replayed: one launch for all operators of a step.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "tandem/device/arena.h"
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

/// Tokens of a step, and the most blocks that one of them sees: as many as there are, or more.
struct GraphShape {
  int64_t num_tokens, num_blocks;
  auto operator<=>(const GraphShape&) const = default;
};

/// For steps of up to so many tokens, each of which sees up to so many blocks: 21 at most, the largest first. Numbers of tokens are
/// most_tokens, powers of two below, and 1; numbers of blocks are most_blocks, its square root, and 1.
std::vector<GraphShape> graph_shapes(int64_t most_tokens, int64_t most_blocks);

/// What graphs read, and the fp32 logits[T,V] that they write: all of it stays where it is.
struct GraphTensors {
  const model::Decoder& decoder;
  const model::ModelParameters& parameters;
  const KvCache& cache;
  at::Tensor logits_TV;
};

/// Decode steps of one shape.
///
/// Ownership  uses the tensors, which stay where they are while it lives; not the parameters themselves.
/// Threads    one.
/// Errors     PeerError of what the device refuses.
class DecodeGraph {
 public:
  /// Captured as one of `graphs`. A run writes the first rows of the logits. Null: one step is computed, as to capture it does, and none
  /// can be run after it.
  DecodeGraph(const GraphShape& shape, const GraphTensors& on, device::Graphs* graphs);

  const GraphShape& shape() const { return shape_; }
  /// Queues a step of R tokens, one of each sequence. `ids_R` may be there already, even if the host does not know them.
  void run(const at::Tensor& ids_R, const model::kernel::PagedTokens& tokens);

 private:
  void fill(const at::Tensor& ids_R, const model::kernel::PagedTokens& tokens);

  const GraphShape shape_;
  const int64_t spare_block_;
  const model::kernel::AttentionKernels& attention_;
  at::Tensor ids_T_, positions_T_;
  std::shared_ptr<model::kernel::PagedPlan> plan_;
  std::unique_ptr<device::Graph> graph_;
};

/// The graphs of an engine: every shape is captured when the cache is there for the first time, and never again for the same weights. They
/// share memory, which the arena counts as "graphs", and they write into one tensor of logits, which the arena has as "logits".
///
///   open(weights, cache) -> run, run, ... -> close() -> (training) -> open(the same, at the same addresses) -> run, ...
///
/// Ownership  uses the decoder and the arena, and from open() on the weights and the cache: both must come back to the same addresses, or
///            else forget() goes before. Owns the logits.
/// Threads    one.
/// Blocking   open waits for the device where it captures.
/// Errors     UserError of open if the arena has no room for the logits; PeerError of what the device refuses.
class DecodeGraphs {
 public:
  /// Whether the decoder's steps can be captured: on a device that has graphs, alone, and without experts, whose rows the host counts.
  static bool serves(const model::Decoder& decoder);

  /// For steps of up to `most_tokens` tokens. Without memory yet. `logs`: the log hears of what is captured.
  DecodeGraphs(const model::Decoder& decoder, device::Arena& arena, int64_t most_tokens, bool logs);
  ~DecodeGraphs() { forget(); }
  DecodeGraphs(const DecodeGraphs&) = delete;
  DecodeGraphs& operator=(const DecodeGraphs&) = delete;

  int64_t logits_bytes() const { return logits_.num_bytes(); }
  /// What graphs share, as the arena counts it: 0 before the first capture.
  int64_t shared_bytes() const { return memory_bytes_; }
  /// The same before it: the most that steps of all shapes take beside the logits. Runs each once; of the cache they use only the spare
  /// block.
  int64_t measured_bytes(const model::ModelParameters& parameters, const KvCache& cache, int64_t most_blocks);
  /// Steps with these weights may run, of tokens that see up to `most_blocks`. What was captured for weights that lie there is good still.
  void open(const model::ModelParameters& parameters, const KvCache& cache, int64_t most_blocks);
  /// The memory of the logits goes, graphs stay.
  void close();
  /// Graphs go, too.
  void forget();

  /// Whether there is a graph for so many tokens and blocks.
  bool fit(int64_t num_tokens, int64_t num_blocks) const { return find(num_tokens, num_blocks) != nullptr; }
  /// fp32 logits[R,V] of R tokens, one of each sequence; what they hold lasts until the next run. `ids_R` may be there already, even if
  /// the host does not know them. Queued. Errors: InternalError for a step that does not fit.
  at::Tensor run(const at::Tensor& ids_R, const model::kernel::PagedTokens& tokens);

 private:
  // For weights that lie at these addresses.
  struct Captured {
    std::vector<const void*> weights;
    std::vector<std::unique_ptr<DecodeGraph>> graphs;  // the largest first
  };

  DecodeGraph* find(int64_t num_tokens, int64_t num_blocks) const;
  void capture(Captured& captured, const GraphTensors& on, int64_t most_blocks);

  const model::Decoder& decoder_;
  device::Arena& arena_;
  const int64_t most_tokens_;
  const bool logs_;
  device::Region logits_;
  std::unique_ptr<device::Graphs> memory_;
  std::vector<Captured> captured_;  // of the weights in use first
  int64_t memory_bytes_ = 0;  // that graphs share
};

}  // namespace tandem::rollout
