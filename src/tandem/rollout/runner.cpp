// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/runner.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/device/device.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kWholeTokens = 16;  // a shorter prompt attends row by row just as fast

CacheShape cache_shape(const Options& options, const model::Decoder& decoder, int64_t num_layers) {
  return {num_layers, decoder.attention_shape(), options.kv_block_tokens, decoder.kernels().dtype()};
}

// The same for all pipeline stages: those of the first, which has the most layers.
int64_t common_blocks(const Options& options, const model::Decoder& decoder, int64_t max_context_tokens) {
  const int64_t most = model::num_layers_of(decoder.place().layout, decoder.config().num_layers, 0);
  return num_kv_blocks(options, cache_shape(options, decoder, most), max_context_tokens);
}

model::kernel::PagedTokens paged_tokens(const Plan& plan, bool parity) {
  size_t most_blocks = 1;
  for (const Plan::Run& run : plan.runs) most_blocks = std::max(most_blocks, run.blocks.size());
  const int64_t num_tokens = std::ssize(plan.ids);
  model::kernel::PagedTokens tokens{at::zeros({std::ssize(plan.runs), static_cast<int64_t>(most_blocks)}, at::kInt),
                                    at::empty({num_tokens}, at::kLong), at::empty({num_tokens}, at::kLong), {}};
  int64_t *sequence = tokens.sequence_T.data_ptr<int64_t>(), *position = tokens.positions_T.data_ptr<int64_t>();
  for (size_t s = 0; s < plan.runs.size(); ++s) {
    const Plan::Run& run = plan.runs[s];
    if (run.position == 0 && run.count >= kWholeTokens && !parity) tokens.whole.push_back({run.begin, run.count, {}});
    std::ranges::copy(run.blocks, tokens.block_tables_SB.data_ptr<int32_t>() + s * most_blocks);
    for (int64_t t = 0; t < run.count; ++t) *sequence++ = static_cast<int64_t>(s), *position++ = run.position + t;
  }
  return tokens;
}

at::Tensor tensor_of(const auto& values) {
  at::Tensor tensor = at::empty({std::ssize(values)}, at::kLong);
  std::copy(values.begin(), values.end(), tensor.template data_ptr<int64_t>());
  return tensor;
}

}  // namespace

int64_t num_kv_blocks(const Options& options, const CacheShape& shape, int64_t max_context_tokens) {
  const int64_t per_sequence = (max_context_tokens + shape.block_tokens - 1) / shape.block_tokens + 1;
  const int64_t affordable = (options.kv_cache_mib << 20) / shape.bytes_per_block();
  return std::max<int64_t>(1, std::min(affordable, per_sequence * (options.max_running + 1)));
}

Runner::Runner(const Options& options, const model::Decoder& decoder, device::Arena& arena)
    : options_(options), decoder_(decoder), arena_(arena), has_graphs_(options.graphs && DecodeGraph::serves(decoder)) {}

Runner::~Runner() { count_packed(0); }

void Runner::count_packed(int64_t bytes) {
  arena_.count("packed", bytes - packed_bytes_);
  packed_bytes_ = bytes;
}

void Runner::take_weights(const model::ModelParameters& parameters) {
  if (has_graphs_) {  // the whole model is here
    const void* const address = parameters.final_norm.value.data_ptr();
    if (std::exchange(parameters_for_graphs_, address) != address) graphs_.clear();
  }
  parameters_ = parameters;
  if (options_.packed_weights && !decoder_.kernels().parity())
    count_packed(model::pack_parameters(*parameters_, decoder_.kernels()));
}

void Runner::drop_weights() {
  parameters_.reset();
  count_packed(0);
}

// As many blocks as are wanted, or as there is room for; as many on all TP and PP peers, which plan the same steps.
void Runner::open_cache(int64_t max_context_tokens) {
  if (const int64_t unit = decoder_.kernels().attention().block_multiple; options_.kv_block_tokens % unit != 0)
    throw UserError("rollout.kv_block_tokens", join_text("is ", options_.kv_block_tokens), join_text("a multiple of ", unit));
  const CacheShape shape = cache_shape(options_, decoder_, decoder_.num_layers());
  int64_t blocks = common_blocks(options_, decoder_, max_context_tokens);
  if (const auto left = arena_.left_bytes()) {
    const int64_t wanted = blocks;
    blocks = std::min(blocks, *left / shape.bytes_per_block() - (has_graphs_ ? 1 : 0));  // less the spare one
    for (comm::Group* peers : {decoder_.place().tp, decoder_.place().pp}) {
      if (!peers || peers->size() == 1) continue;
      at::Tensor fewest = at::full({1}, -blocks, at::kLong);
      peers->all_reduce(fewest, comm::ReduceOp::kMax);
      blocks = -fewest.item<int64_t>();
    }
    const int64_t one = std::min(wanted, (max_context_tokens + shape.block_tokens - 1) / shape.block_tokens);
    if (blocks < one)
      throw UserError("memory." + arena_.name() + "_mib",
                      join_text("leaves ", *left, " bytes for the KV cache, and a sequence of ", max_context_tokens, " tokens takes ",
                                one * shape.bytes_per_block()),
                      "a larger budget, memory.offload_train_optimizer and its like, or a shorter context");
  }
  cache_.emplace(decoder_.kernels().attention(), shape, blocks, arena_, has_graphs_);
}

void Runner::close_cache() {
  graphs_.clear();
  cache_.reset();
}

// Of a step in which each sequence has one token, whose logits are wanted.
at::Tensor Runner::run_graph(const Plan& plan, const model::kernel::PagedTokens& tokens) {
  const GraphShape shape = GraphShape::around(std::ssize(plan.ids), tokens.block_tables_SB.size(1));
  std::unique_ptr<DecodeGraph>& graph = graphs_[shape];
  if (!graph) graph = std::make_unique<DecodeGraph>(shape, decoder_, *parameters_, *cache_);
  return graph->run(plan.ids, tokens).unsqueeze(0);
}

bool Runner::fits_graph(const Plan& plan) const {
  return has_graphs_ && plan.rows.size() == plan.ids.size() &&
         std::ranges::all_of(plan.runs, [](const Plan::Run& run) { return run.count == 1; });
}

StepOutput Runner::run(const Plan& plan, bool record_routes) {
  TANDEM_CHECK(parameters_, "the engine has no weights");
  at::NoGradGuard no_grad;
  device::backend_of(arena_.device()).use(arena_.device());  // any thread may step
  StepOutput out;
  for (const BlockCopy& copy : plan.copies) cache_->copy(copy.from, copy.to);
  if (plan.ids.empty()) {
    if (decoder_.ep()) decoder_.serve_experts(*parameters_);
    return out;
  }
  const model::kernel::PagedTokens tokens = paged_tokens(plan, decoder_.kernels().parity());
  if (fits_graph(plan) && !record_routes) {
    out.logits_SRV = run_graph(plan, tokens);
    return out;
  }
  PagedContext context(*cache_, decoder_, decoder_.kernels().attention().plan_paged(tokens, decoder_.kernels().device()));
  model::TokenBatch batch{tensor_of(plan.ids), tokens.positions_T, tensor_of(plan.rows), {}, {}};
  if (record_routes)
    batch.recorded_routes_TX = at::full({std::ssize(plan.ids), decoder_.route_width()}, -1, decoder_.kernels().options(at::kShort));
  const at::Tensor hidden_RH = decoder_.forward_stages(*parameters_, batch, context);
  if (record_routes) decoder_.merge_routes(batch.recorded_routes_TX);
  if (record_routes) out.routes_TX = batch.recorded_routes_TX.cpu();
  if (!plan.rows.empty() && hidden_RH.defined()) out.logits_SRV = gathered_logits(hidden_RH);
  return out;
}

at::Tensor Runner::gathered_logits(const at::Tensor& hidden_RH) const {
  at::Tensor local_RV = decoder_.local_logits(*parameters_, hidden_RH);
  if (decoder_.tp_size() == 1) return local_RV.unsqueeze(0);
  const int64_t width = model::vocab_shard_rows(decoder_.config(), decoder_.tp_size());
  if (local_RV.size(1) < width) local_RV = at::constant_pad_nd(local_RV, {0, width - local_RV.size(1)});  // a gather has equal parts
  at::Tensor all_SRV = at::empty({decoder_.tp_size(), local_RV.size(0), width}, local_RV.options());
  decoder_.tp()->all_gather(all_SRV, local_RV);
  return all_SRV;
}

}  // namespace tandem::rollout
