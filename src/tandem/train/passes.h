// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs micro-batches through this rank's part of the model: its pipeline stage, its part of the tokens.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tandem/comm/group.h"
#include "tandem/device/arena.h"
#include "tandem/model/decoder.h"
#include "tandem/train/micro_batch.h"

namespace tandem::train {

/// Leaves this rank its part of whole micro-batches: context-parallel ranks share each. Appends empty ones, until ranks that share
/// experts have equally many, and interleaved stages a multiple of the stages. Collective over the decoder's ep.
void share_micro_batches(const model::Decoder& decoder, std::vector<MicroBatch>& batches);

/// The part of the step's loss that a micro-batch adds: a scalar that carries the gradient. `hidden_RH` are the final states that this
/// rank has: head_of or values_of takes them to all R response tokens.
using LossOf = std::function<at::Tensor(const MicroBatch& batch, const at::Tensor& hidden_RH)>;

struct TrainingPass {
  const model::Decoder& decoder;
  const model::ModelParameters& parameters;
  model::Recompute recompute;
  std::function<void(int64_t layer)> layer_done;  ///< when the step's gradients of a layer are final; may be empty
};

/// Forward and backward over all of them, as pipeline.h orders it. The loss is asked for on the last stage alone. Collective over the
/// ranks of the decoder's place.
void run_training(const TrainingPass& pass, std::span<MicroBatch> batches, const LossOf& loss_of);

/// Gets the final hidden states of the rows of a micro-batch that this rank has, on the last stage alone.
using UseHidden = std::function<void(const MicroBatch& batch, const at::Tensor& hidden_RH)>;

/// What a training pass asks for whose loss needs all micro-batches at once.
struct LateLoss {
  UseHidden use;                ///< on the way forward, where it keeps what the loss will be made of, with its gradient
  std::function<void()> decide; ///< once all have gone forward, on every rank
  std::function<at::Tensor(const MicroBatch& batch)> loss_of;  ///< on the way backward, on the last stage: as LossOf
};

/// All go forward, then all go backward: what each needs for that is held until then. Collective as above. Errors: what `decide` throws,
/// on all ranks alike, before any goes backward.
void run_training(const TrainingPass& pass, std::span<MicroBatch> batches, const LateLoss& late);

/// How many passes can wait for a late loss: those that a quarter of the free memory holds. Free is what the machine and its control groups
/// have, in equal shares for the ranks there, and what the arena's budget has. What a token takes is measured as passes wait. At least
/// one pass waits, with interleaved stages one for each stage; before the first measure no more do.
///
/// Ownership  uses arena and world.
/// Threads    one.
class WaitingRoom {
 public:
  WaitingRoom(const device::Arena& arena, comm::Group& world, const model::Layout& layout)
      : arena_(arena), world_(world), layout_(layout) {}

  /// How many of the first micro-batches. Ranks whose passes meet get the same answer. Collective.
  int64_t num(std::span<const MicroBatch> batches) const;
  /// So much these took.
  void note(std::span<const MicroBatch> batches, int64_t bytes);

 private:
  int64_t free_bytes() const;

  const device::Arena& arena_;
  comm::Group& world_;
  const model::Layout layout_;
  double token_bytes_ = 0;  // the most that was measured
};

/// Forward without gradient. Collective as above.
void run_scoring(const model::Decoder& decoder, const model::ModelParameters& parameters, std::span<const MicroBatch> batches,
                 const UseHidden& use);
/// The head's output for all R response tokens, whoever has their hidden states: on the host, where losses are made. Collective over the
/// decoder's tp and cp.
model::op::HeadOutput head_of(const model::Decoder& decoder, const model::ModelParameters& parameters, const MicroBatch& batch,
                                  const at::Tensor& hidden_RH, double temperature);
/// [R], on the host: what the first label of a score head says of the text before each response token. Collective as head_of.
at::Tensor values_of(const model::Decoder& decoder, const model::ModelParameters& parameters, const MicroBatch& batch,
                     const at::Tensor& hidden_RH);

}  // namespace tandem::train
