// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/decode_graph.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <bit>

#include "tandem/base/check.h"
#include "tandem/device/device.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kStep = 8;  // numbers of tokens above it are multiples of it

}  // namespace

GraphShape GraphShape::around(int64_t num_tokens, int64_t num_blocks) {
  const auto power = [](int64_t n) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n))); };
  return {num_tokens < kStep ? power(num_tokens) : (num_tokens + kStep - 1) / kStep * kStep, power(std::max<int64_t>(1, num_blocks))};
}

bool DecodeGraph::serves(const model::Decoder& decoder) {
  const at::Device device = decoder.kernels().device();
  return decoder.kernels().attention().plan_fixed && decoder.config().moe.num_experts == 0 && !decoder.place().tp && !decoder.place().pp &&
         device::backend_of(device).make_graphs(device);
}

DecodeGraph::DecodeGraph(const GraphShape& shape, const model::Decoder& decoder, const model::ModelParameters& parameters,
                         const KvCache& cache, device::Graphs& graphs)
    : shape_(shape),
      spare_block_(cache.spare_block()),
      attention_(decoder.kernels().attention()),
      ids_T_(at::zeros({shape.num_tokens}, decoder.kernels().options(at::kLong))),
      positions_T_(at::zeros_like(ids_T_)),
      plan_(attention_.plan_fixed(shape.num_tokens, shape.num_blocks, cache.block_tokens(), decoder.kernels().device())),
      graph_(graphs.make()) {
  const at::Tensor none = at::zeros({0}, at::kLong);
  run(none, {at::zeros({0, shape.num_blocks}, at::kInt), none, none, {}});  // all to the spare block
  PagedContext context(cache, decoder, plan_);
  const model::TokenBatch batch{ids_T_, positions_T_, {}, {}, {}};
  graph_->capture([&] { logits_TV_ = decoder.local_logits(parameters, decoder.forward(parameters, batch, context)); });
}

at::Tensor DecodeGraph::run(const at::Tensor& ids_R, const model::kernel::PagedTokens& tokens) {
  const int64_t R = ids_R.numel(), T = shape_.num_tokens, C = tokens.block_tables_SB.size(1);
  TANDEM_CHECK(R <= T && C <= shape_.num_blocks, R, " tokens and ", C, " blocks in a graph of ", T, " and ", shape_.num_blocks);
  const at::Tensor positions = at::zeros({T}, at::kLong);
  positions.narrow(0, 0, R).copy_(tokens.positions_T);
  const at::Tensor tables = at::full({T, shape_.num_blocks}, spare_block_, at::kInt), sequence = at::arange(T, at::kLong);
  tables.narrow(0, 0, R).narrow(1, 0, C).copy_(tokens.block_tables_SB.index_select(0, tokens.sequence_T));
  ids_T_.narrow(0, 0, R).copy_(ids_R, /*non_blocking=*/true);  // ids behind them are of an earlier step: theirs is the spare block
  positions_T_.copy_(positions, true);
  attention_.refill(*plan_, {tables, sequence, positions, {}});
  if (!logits_TV_.defined()) return {};
  graph_->replay();
  return logits_TV_.narrow(0, 0, R);
}

}  // namespace tandem::rollout
