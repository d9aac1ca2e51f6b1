// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/decode_graph.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <ranges>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/log.h"
#include "tandem/base/strings.h"
#include "tandem/device/allocation_meter.h"
#include "tandem/device/device.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kFewTokens = 8;   // a step of fewer takes as long, but for one token
constexpr size_t kMostSizes = 7;    // numbers of tokens
constexpr size_t kMostWeights = 2;  // places of weights whose graphs are kept: where one copy is filled while another one is read

const char* const kLogits = "logits";
const char* const kGraphs = "graphs";

}  // namespace

std::vector<GraphShape> graph_shapes(int64_t most_tokens, int64_t most_blocks) {
  TANDEM_CHECK(most_tokens > 0 && most_blocks > 0, most_tokens, " tokens and ", most_blocks, " blocks");
  std::vector<int64_t> tokens = {most_tokens};
  while (tokens.size() + 1 < kMostSizes && tokens.back() > kFewTokens)
    tokens.push_back(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(tokens.back())) / 2));
  if (tokens.back() > 1) tokens.push_back(1);
  std::vector<int64_t> blocks = {most_blocks, std::lround(std::ceil(std::sqrt(static_cast<double>(most_blocks)))), 1};
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  std::vector<GraphShape> shapes;
  for (const int64_t t : tokens)
    for (const int64_t c : blocks) shapes.push_back({t, c});
  return shapes;
}

DecodeGraph::DecodeGraph(const GraphShape& shape, const GraphTensors& on, device::Graphs* graphs)
    : shape_(shape),
      spare_block_(on.cache.spare_block()),
      attention_(on.decoder.kernels().attention()),
      ids_T_(at::zeros({shape.num_tokens}, on.decoder.kernels().options(at::kLong))),
      positions_T_(at::zeros_like(ids_T_)),
      plan_(attention_.plan_fixed(shape.num_tokens, shape.num_blocks, on.cache.block_tokens(), on.decoder.kernels().device())),
      graph_(graphs ? graphs->make() : nullptr) {
  const at::Tensor none = at::zeros({0}, at::kLong);
  fill(none, {at::zeros({0, shape.num_blocks}, at::kInt), none, none, {}});  // all to the spare block
  PagedContext context(on.cache, on.decoder, plan_);
  const model::TokenBatch batch{ids_T_, positions_T_, {}, {}, {}};
  at::Tensor out = on.logits_TV.narrow(0, 0, shape.num_tokens);
  const auto step = [&] {
    on.decoder.kernels().forward_float(out, on.decoder.forward(on.parameters, batch, context), on.parameters.head.value);
  };
  graph_ ? graph_->capture(step) : step();
}

void DecodeGraph::fill(const at::Tensor& ids_R, const model::kernel::PagedTokens& tokens) {
  const int64_t R = ids_R.numel(), T = shape_.num_tokens, C = tokens.block_tables_SB.size(1);
  TANDEM_CHECK(R <= T && C <= shape_.num_blocks, R, " tokens and ", C, " blocks in a graph of ", T, " and ", shape_.num_blocks);
  const at::Tensor positions = at::zeros({T}, at::kLong);
  positions.narrow(0, 0, R).copy_(tokens.positions_T);
  const at::Tensor tables = at::full({T, shape_.num_blocks}, spare_block_, at::kInt), sequence = at::arange(T, at::kLong);
  tables.narrow(0, 0, R).narrow(1, 0, C).copy_(tokens.block_tables_SB.index_select(0, tokens.sequence_T));
  ids_T_.narrow(0, 0, R).copy_(ids_R, /*non_blocking=*/true);  // ids behind them are of an earlier step: theirs is the spare block
  positions_T_.copy_(positions, true);
  attention_.refill(*plan_, {tables, sequence, positions, {}});
}

void DecodeGraph::run(const at::Tensor& ids_R, const model::kernel::PagedTokens& tokens) {
  fill(ids_R, tokens);
  graph_->replay();
}

bool DecodeGraphs::serves(const model::Decoder& decoder) {
  const at::Device device = decoder.kernels().device();
  return decoder.kernels().attention().plan_fixed && decoder.config().moe.num_experts == 0 && !decoder.place().tp && !decoder.place().pp &&
         device::backend_of(device).make_graphs(device);
}

DecodeGraphs::DecodeGraphs(const model::Decoder& decoder, device::Arena& arena, int64_t most_tokens, bool logs)
    : decoder_(decoder),
      arena_(arena),
      most_tokens_(most_tokens),
      logs_(logs),
      logits_(arena.reserve(kLogits, {most_tokens, decoder.config().vocab_size}, at::kFloat)),
      memory_(device::backend_of(arena.device()).make_graphs(arena.device())) {}

void DecodeGraphs::open(const model::ModelParameters& parameters, const KvCache& cache, int64_t most_blocks) {
  logits_.back();
  std::vector<const void*> weights = model::addresses_of(parameters);
  const auto found = std::ranges::find(captured_, weights, &Captured::weights);
  if (found != captured_.end()) {
    std::rotate(captured_.begin(), found, found + 1);
    return;
  }
  if (captured_.size() == kMostWeights) captured_.pop_back();
  Captured captured{std::move(weights), {}};
  capture(captured, {decoder_, parameters, cache, logits_.tensor()}, most_blocks);
  captured_.insert(captured_.begin(), std::move(captured));
}

int64_t DecodeGraphs::measured_bytes(const model::ModelParameters& parameters, const KvCache& cache, int64_t most_blocks) {
  const at::NoGradGuard no_grad;
  device::backend_of(arena_.device()).use(arena_.device());  // any thread may open
  logits_.back();
  const device::AllocationMeter meter(arena_, kGraphs);
  std::vector<std::unique_ptr<DecodeGraph>> steps;
  for (const GraphShape& shape : graph_shapes(most_tokens_, most_blocks))
    steps.push_back(std::make_unique<DecodeGraph>(shape, GraphTensors{decoder_, parameters, cache, logits_.tensor()}, nullptr));
  return meter.peak_bytes();
}

// The largest first, so that the others find room in the memory that it took.
void DecodeGraphs::capture(Captured& captured, const GraphTensors& on, int64_t most_blocks) {
  const at::NoGradGuard no_grad;
  device::backend_of(arena_.device()).use(arena_.device());  // any thread may open
  const double begin = now_s();
  int64_t bytes = 0;
  {
    const device::AllocationMeter meter(arena_, kGraphs);
    for (const GraphShape& shape : graph_shapes(most_tokens_, most_blocks))
      captured.graphs.push_back(std::make_unique<DecodeGraph>(shape, on, memory_.get()));
    bytes = meter.peak_bytes();
  }
  arena_.count(kGraphs, std::max(bytes, memory_bytes_) - memory_bytes_);
  memory_bytes_ = std::max(bytes, memory_bytes_);
  if (!logs_) return;
  log::info("decode: ", captured.graphs.size(), " graphs of up to ", most_tokens_, " sequences and ", most_blocks, " blocks of ",
            on.cache.block_tokens(), " tokens, captured in ", now_s() - begin, " s; they share ", bytes_text(memory_bytes_), " and ",
            bytes_text(logits_bytes()), " of logits");
}

void DecodeGraphs::close() { logits_.release(); }

void DecodeGraphs::forget() {
  captured_.clear();
  arena_.count(kGraphs, -memory_bytes_);
  memory_bytes_ = 0;
}

DecodeGraph* DecodeGraphs::find(int64_t num_tokens, int64_t num_blocks) const {
  if (captured_.empty()) return nullptr;
  for (const std::unique_ptr<DecodeGraph>& graph : captured_.front().graphs | std::views::reverse)
    if (graph->shape().num_tokens >= num_tokens && graph->shape().num_blocks >= num_blocks) return graph.get();
  return nullptr;
}

at::Tensor DecodeGraphs::run(const at::Tensor& ids_R, const model::kernel::PagedTokens& tokens) {
  DecodeGraph* const graph = find(ids_R.numel(), tokens.block_tables_SB.size(1));
  TANDEM_CHECK(graph, "no graph for ", ids_R.numel(), " tokens and ", tokens.block_tables_SB.size(1), " blocks");
  graph->run(ids_R, tokens);
  return logits_.tensor().narrow(0, 0, ids_R.numel());
}

}  // namespace tandem::rollout
