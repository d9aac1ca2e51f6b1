// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs the plan of a step through the model: tokens and blocks in, logits out.

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "tandem/device/arena.h"
#include "tandem/model/decoder.h"
#include "tandem/rollout/decode_graph.h"
#include "tandem/rollout/kv_cache.h"
#include "tandem/rollout/options.h"
#include "tandem/rollout/scheduler.h"

namespace tandem::rollout {

/// What a plan gave. S = TP ranks, R = rows of the plan, V = ids of a TP rank, T = its tokens, X = routes of a token.
struct StepOutput {
  /// fp32; undefined without rows, and but on the last pipeline stage. The last shard may end in columns that are no ids.
  at::Tensor logits_SRV;
  at::Tensor routes_TX;    ///< int16, on the host, -1 where there is none; undefined if they were not asked for
};

/// Ownership  uses the decoder, the arena and the weights; owns the KV cache and the graphs of decode steps, and counts the packed copy of
///            the weights in the arena.
/// Threads    one per engine.
/// Blocking   run() computes; it waits for TP and PP peers, and for the ranks that share experts.
/// Errors     UserError if the arena has no room for one sequence of the longest context; InternalError without weights.
/// Read next  scheduler.h (what a plan is)
class Runner {
 public:
  Runner(const Options& options, const model::Decoder& decoder, device::Arena& arena, bool logs_graphs = false);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  /// `parameters` must stay as they are until they are dropped; a packed copy is made where the options ask for one.
  void take_weights(const model::ModelParameters& parameters);
  void drop_weights();
  bool has_weights() const { return parameters_.has_value(); }

  /// Makes the KV cache with what is left of the arena, for sequences of that many tokens. Where it had about as many blocks before, it
  /// comes back to its addresses, and graphs that were captured stay good. Collective over TP and PP peers.
  void open_cache(int64_t max_context_tokens);
  void close_cache();
  int64_t num_blocks() const { return cache_ && cache_->is_open() ? cache_->num_blocks() : 0; }

  /// A plan without tokens computes what peers need of the experts held here. What ran ahead and is in the plan is not run again.
  StepOutput run(const Plan& plan, bool record_routes);

  /// Whether run_ahead() may be called.
  bool runs_ahead() const { return graphs_.has_value(); }
  /// Queues the next token of sequences that `plan`, the last that was run, drew a token for: the host need not know it, and prepares the
  /// next plan meanwhile. tokens_D[d] is that of plan.draws[d]; `draws` are those of sequences that are in a run of the plan and may go on.
  /// A sequence without a block for the token stays behind.
  void run_ahead(const Plan& plan, const at::Tensor& tokens_D, std::span<const int64_t> draws);
  /// Tokens that were in the plan after, since the start.
  int64_t num_ran_ahead() const { return num_ran_ahead_; }

 private:
  // Tokens that ran before their plan was made, the next one. A run of it is one of theirs if it has the same place in the same blocks.
  struct Ahead {
    struct Row {
      int64_t row, position;
      std::vector<int32_t> blocks;
    };
    std::unordered_map<SequenceId, Row> of;
    at::Tensor logits_RV;  // the graph's
  };

  void count_packed(int64_t bytes);
  StepOutput run_now(const Plan& plan, bool record_routes);
  at::Tensor run_with(const Plan& plan, const Ahead& ahead);
  int64_t blocks_for(int64_t max_context_tokens) const;
  void measure_graphs(const CacheShape& shape);
  void open_graphs();
  bool fits_graph(const Plan& plan, const model::kernel::PagedTokens& tokens) const;
  at::Tensor gathered_logits(const at::Tensor& hidden_RH) const;

  const Options options_;
  const model::Decoder& decoder_;
  device::Arena& arena_;
  std::optional<model::ModelParameters> parameters_;
  std::optional<KvCache> cache_;
  int64_t most_blocks_ = 0;             // of a sequence
  std::optional<DecodeGraphs> graphs_;  // none where steps are not captured
  int64_t graph_bytes_ = 0;             // what they share, as measured before the cache took the rest of a budget
  std::optional<Ahead> ahead_;
  int64_t num_ran_ahead_ = 0;
  int64_t packed_bytes_ = 0;
};

/// Options::kv_block_tokens, or where it is 0 what those kernels read fastest on such a device.
int64_t block_tokens_of(const Options& options, const model::kernel::AttentionKernels& attention, at::DeviceType type);

/// Blocks for `max_running` sequences of the longest context, bounded by kv_cache_mib.
int64_t num_kv_blocks(const Options& options, const CacheShape& shape, int64_t max_context_tokens);

}  // namespace tandem::rollout
