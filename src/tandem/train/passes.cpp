// SPDX-License-Identifier: Apache-2.0
#include "tandem/train/passes.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "tandem/comm/scalar.h"
#include "tandem/device/memory_limit.h"
#include "tandem/train/pipeline.h"

namespace tandem::train {
namespace {

PipelineShape shape_of(const model::Decoder& decoder) {
  const model::RankPlace& place = decoder.place();
  return {place.layout.pp, place.layout.vpp, place.layout.pp_rank(place.rank)};
}

class Run {
 public:
  Run(const TrainingPass& pass, std::span<MicroBatch> batches)
      : pass_(pass), decoder_(pass.decoder), batches_(batches), shape_(shape_of(pass.decoder)) {}

  void run(const LossOf& loss_of) {
    for (const PipelineAction& action : actions()) {
      if (action.forward) forward(action, [&](const MicroBatch& mine, const at::Tensor& out) { kept(action).out = loss_of(mine, out); });
      else backward(action);
    }
  }

  void run(const LateLoss& late) {
    const std::vector<PipelineAction> all = actions();
    for (const PipelineAction& action : all)
      if (action.forward) forward(action, late.use);
    late.decide();
    for (const PipelineAction& action : all) {
      if (action.forward) continue;
      if (decoder_.ends(action.chunk)) kept(action).out = late.loss_of(batch(action));
      backward(action);
    }
  }

 private:
  // What a forward pass leaves for its backward pass.
  struct Kept {
    at::Tensor carried, out;  // out: the loss, on the last stage
    std::unique_ptr<model::PackedContext> context;
  };
  Kept& kept(const PipelineAction& action) { return kept_[{action.chunk, action.micro_batch}]; }
  std::vector<PipelineAction> actions() const { return pipeline_actions(shape_, std::ssize(batches_)); }
  MicroBatch& batch(const PipelineAction& action) { return batches_[static_cast<size_t>(action.micro_batch)]; }
  comm::Group& stages() { return *decoder_.place().pp; }
  int before() const { return (shape_.stage + shape_.stages - 1) % shape_.stages; }
  int behind() const { return (shape_.stage + 1) % shape_.stages; }

  // `use` gets what the last chunk puts out.
  void forward(const PipelineAction& action, const UseHidden& use) {
    const MicroBatch& mine = batch(action);
    Kept& keep = kept(action);
    keep.context = std::make_unique<model::PackedContext>(decoder_.kernels(), mine.trees, mine.parallel);
    model::PassOptions options;
    options.chunk = action.chunk;
    options.recompute = pass_.recompute;
    if (action.micro_batch + 1 == std::ssize(batches_)) options.layer_done = pass_.layer_done;
    if (!decoder_.begins(action.chunk)) {
      keep.carried = at::empty({decoder_.carried_rows(mine.tokens, *keep.context), decoder_.config().hidden_size},
                               decoder_.kernels().options(decoder_.kernels().dtype()));
      stages().receive(keep.carried, before(), model::activation_tag(shape_.stage == 0 ? action.chunk - 1 : action.chunk));
      options.carried_tH = keep.carried.requires_grad_(true);
    }
    const at::Tensor out = decoder_.forward(pass_.parameters, mine.tokens, *keep.context, options);
    if (decoder_.ends(action.chunk)) {
      use(mine, out);
    } else {
      keep.out = out;
      stages().send(out.detach(), behind(), model::activation_tag(action.chunk));
    }
  }

  void backward(const PipelineAction& action) {
    Kept& keep = kept(action);
    if (decoder_.ends(action.chunk)) {
      keep.out.backward();
    } else {
      at::Tensor gradient = at::empty_like(keep.out);
      const bool wraps = shape_.stage + 1 == shape_.stages;
      stages().receive(gradient, behind(), model::gradient_tag(wraps ? action.chunk + 1 : action.chunk));
      keep.out.backward(gradient);
    }
    if (!decoder_.begins(action.chunk)) stages().send(keep.carried.grad(), before(), model::gradient_tag(action.chunk));
    kept_.erase({action.chunk, action.micro_batch});
  }

  const TrainingPass& pass_;
  const model::Decoder& decoder_;
  std::span<MicroBatch> batches_;
  PipelineShape shape_;
  std::map<std::pair<int, int64_t>, Kept> kept_;
};

}  // namespace

model::op::HeadOutput head_of(const model::Decoder& decoder, const model::ModelParameters& parameters, const MicroBatch& batch,
                                  const at::Tensor& hidden_RH, double temperature) {
  const model::op::HeadOutput mine = decoder.logprobs(parameters, hidden_RH, batch.targets_R, temperature);
  return {whole_responses(batch, mine.logprobs_R).cpu(), whole_responses(batch, mine.entropy_R).cpu()};
}

at::Tensor values_of(const model::Decoder& decoder, const model::ModelParameters& parameters, const MicroBatch& batch,
                     const at::Tensor& hidden_RH) {
  return whole_responses(batch, decoder.scores(parameters, hidden_RH).select(1, 0).contiguous()).cpu();
}

void share_micro_batches(const model::Decoder& decoder, std::vector<MicroBatch>& batches) {
  int64_t count = std::ssize(batches);
  if (comm::Group* ep = decoder.ep()) count = comm::max_over(*ep, count);
  pad_micro_batches(batches, padded_micro_batches(shape_of(decoder), count));
  if (comm::Group* cp = decoder.place().cp)
    for (MicroBatch& batch : batches) deal_tokens(batch, *cp);
}

void run_training(const TrainingPass& pass, std::span<MicroBatch> batches, const LossOf& loss_of) { Run(pass, batches).run(loss_of); }

void run_training(const TrainingPass& pass, std::span<MicroBatch> batches, const LateLoss& late) { Run(pass, batches).run(late); }

int64_t WaitingRoom::free_bytes() const {
  int64_t ranks_here = 0;
  for (int rank = 0; rank < world_.size(); ++rank) ranks_here += world_.machine(rank) == world_.machine(world_.rank());
  const int64_t of_machine = device::memory_limit().bytes / ranks_here;
  return std::min(of_machine, arena_.left_bytes().value_or(of_machine));
}

int64_t WaitingRoom::num(std::span<const MicroBatch> batches) const {
  const int64_t round = layout_.vpp > 1 ? layout_.pp : 1;  // interleaved stages pass micro-batches on in rounds
  double left_bytes = static_cast<double>(free_bytes()) / 4;
  int64_t fit = 0;
  for (const MicroBatch& batch : batches) {
    const int64_t tokens = batch.tokens.ids_T.numel();
    left_bytes -= token_bytes_ * static_cast<double>(tokens);
    if (tokens > 0 && (token_bytes_ == 0 || left_bytes < 0)) break;
    ++fit;
  }
  const int64_t count = std::ssize(batches);
  const int64_t agreed = comm::min_over(world_, fit == count ? std::numeric_limits<int64_t>::max() : fit);
  return std::min(count, std::max(round, agreed / round * round));
}

void WaitingRoom::note(std::span<const MicroBatch> batches, int64_t bytes) {
  int64_t tokens = 0;
  for (const MicroBatch& batch : batches) tokens += batch.tokens.ids_T.numel();
  if (tokens > 0) token_bytes_ = std::max(token_bytes_, static_cast<double>(bytes) / static_cast<double>(tokens));
}

void run_scoring(const model::Decoder& decoder, const model::ModelParameters& parameters, std::span<const MicroBatch> batches,
                 const UseHidden& use) {
  at::NoGradGuard no_grad;
  for (const MicroBatch& batch : batches) {
    model::PackedContext context(decoder.kernels(), batch.trees, batch.parallel);
    const at::Tensor hidden_RH = decoder.forward_stages(parameters, batch.tokens, context);
    if (hidden_RH.defined()) use(batch, hidden_RH);
  }
}

}  // namespace tandem::train
