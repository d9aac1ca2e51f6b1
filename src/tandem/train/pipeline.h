// SPDX-License-Identifier: Apache-2.0
#pragma once
// In which order a pipeline stage runs the forward and backward passes of a step's micro-batches: one forward, one backward in turns
// (Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, section 2.2), with vpp chunks of layers a
// stage interleaved. Pure.

#include <cstdint>
#include <vector>

namespace tandem::train {

struct PipelineShape {
  int stages = 1, chunks = 1;  ///< pp, vpp
  int stage = 0;
};

/// One pass of a micro-batch through a chunk of this stage's layers.
struct PipelineAction {
  bool forward;
  int chunk;
  int64_t micro_batch;
  bool operator==(const PipelineAction&) const = default;
};

/// Micro-batches that a step of `count` is to have: with several chunks a multiple of the stages.
int64_t padded_micro_batches(const PipelineShape& shape, int64_t count);

/// Every pass of the step, in order. A stage may run a pass as soon as the stage before (behind, for a backward pass) has run it;
/// messages must be buffered. At most stages - stage forward passes await their backward pass, with chunks (stages - stage - 1) * 2 +
/// (chunks - 1) * stages + 1.
std::vector<PipelineAction> pipeline_actions(const PipelineShape& shape, int64_t micro_batches);

}  // namespace tandem::train
