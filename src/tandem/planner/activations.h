// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a training pass keeps for its backward pass. docs/design/recompute.md has the formula.

#include <cstdint>

#include "tandem/model/decoder.h"
#include "tandem/planner/memory.h"

namespace tandem::planner {

/// A micro-batch as a rank has it, without context parallelism.
struct PassShape {
  int64_t tokens = 0;  ///< T
  int64_t wanted = 0;  ///< R: tokens whose hidden states the head sees
};

/// Bytes of tensors that live between the forward and the backward pass of a micro-batch, on average over TP ranks and, where experts are
/// dealt, for an even load. Of pipeline rank 0's layers; all of them without pp.
int64_t kept_activations(const TrainingPlan& plan, const PassShape& pass, model::Recompute recompute);

/// At least the most that a forward and backward pass of one micro-batch takes at once: what is kept, a layer that runs again, and what one
/// layer and the head pass on for a moment. Kernels take no memory but copies of some rows. Of dense models, without pp and cp.
int64_t training_pass_bytes(const TrainingPlan& plan, const PassShape& pass, model::Recompute recompute);
/// The same of a forward pass for log-probabilities.
int64_t scoring_pass_bytes(const TrainingPlan& plan, const PassShape& pass);
/// The same of a step of generation, where `wanted` are the sequences that get a token, and each sees so many blocks of the cache. On CUDA
/// a query and its mix are there once for each block.
int64_t generation_step_bytes(const TrainingPlan& plan, const PassShape& pass, int64_t blocks);
/// The same of drawing `draws` tokens by top-k or top-p from logits that are there: where libtorch's operators draw, as on CUDA, they sort
/// the vocabulary and add up in fp64, so many rows at a time. Our own kernels of the processor take next to nothing: 0.
int64_t filtered_draw_bytes(const TrainingPlan& plan, int64_t draws);

/// What captured decode steps hold for up to `running` sequences of up to so many blocks: their logits, and the memory that they share. The
/// first goes with the KV cache, the second stays (rollout/decode_graph.h:DecodeGraphs).
struct GraphMemory {
  int64_t logits = 0, shared = 0;
};
GraphMemory graph_memory(const TrainingPlan& plan, int64_t running, int64_t blocks);

}  // namespace tandem::planner
