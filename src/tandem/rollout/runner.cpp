// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/runner.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/device/device.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kWholeTokens = 16;  // a shorter prompt attends row by row just as fast
constexpr int64_t kFewerBlocks = 8;   // a cache stays as it is until there is room for so large a part more

CacheShape cache_shape(const Options& options, const model::Decoder& decoder, int64_t num_layers) {
  return {num_layers, decoder.attention_shape(), options.kv_block_tokens, decoder.kernels().dtype()};
}

// The same for all pipeline stages: those of the first, which has the most layers.
int64_t common_blocks(const Options& options, const model::Decoder& decoder, int64_t max_context_tokens) {
  const int64_t most = model::num_layers_of(decoder.place().layout, decoder.config().num_layers, 0);
  return num_kv_blocks(options, cache_shape(options, decoder, most), max_context_tokens);
}

// With the blocks that the tokens see: a sequence may have one more.
model::kernel::PagedTokens paged_tokens(const std::vector<Plan::Run>& runs, int64_t block_tokens, bool parity) {
  size_t most_blocks = 1;
  int64_t num_tokens = 0;
  const auto seen = [&](const Plan::Run& run) {
    return run.blocks.first(static_cast<size_t>((run.position + run.count + block_tokens - 1) / block_tokens));
  };
  for (const Plan::Run& run : runs) most_blocks = std::max(most_blocks, seen(run).size()), num_tokens += run.count;
  model::kernel::PagedTokens tokens{at::zeros({std::ssize(runs), static_cast<int64_t>(most_blocks)}, at::kInt),
                                    at::empty({num_tokens}, at::kLong), at::empty({num_tokens}, at::kLong), {}};
  int64_t *sequence = tokens.sequence_T.data_ptr<int64_t>(), *position = tokens.positions_T.data_ptr<int64_t>();
  for (size_t s = 0; s < runs.size(); ++s) {
    const Plan::Run& run = runs[s];
    if (run.position == 0 && run.count >= kWholeTokens && !parity) tokens.whole.push_back({run.begin, run.count, {}});
    std::ranges::copy(seen(run), tokens.block_tables_SB.data_ptr<int32_t>() + s * most_blocks);
    for (int64_t t = 0; t < run.count; ++t) *sequence++ = static_cast<int64_t>(s), *position++ = run.position + t;
  }
  return tokens;
}

}  // namespace

int64_t block_tokens_of(const Options& options, const model::kernel::AttentionKernels& attention, at::DeviceType type) {
  return options.kv_block_tokens > 0 ? options.kv_block_tokens : attention.block_tokens(type);
}

int64_t num_kv_blocks(const Options& options, const CacheShape& shape, int64_t max_context_tokens) {
  const int64_t per_sequence = (max_context_tokens + shape.block_tokens - 1) / shape.block_tokens + 1;
  const int64_t affordable = (options.kv_cache_mib << 20) / shape.bytes_per_block();
  return std::max<int64_t>(1, std::min(affordable, per_sequence * (options.max_running + 1)));
}

Runner::Runner(const Options& options, const model::Decoder& decoder, device::Arena& arena, bool logs_graphs)
    : options_(options), decoder_(decoder), arena_(arena) {
  if (options.graphs && DecodeGraphs::serves(decoder)) graphs_.emplace(decoder, arena, options.max_running, logs_graphs);
}

Runner::~Runner() { count_packed(0); }

void Runner::count_packed(int64_t bytes) {
  arena_.count("packed", bytes - packed_bytes_);
  packed_bytes_ = bytes;
}

void Runner::take_weights(const model::ModelParameters& parameters) {
  parameters_ = parameters;
  if (options_.packed_weights && !decoder_.kernels().parity())
    count_packed(model::pack_parameters(*parameters_, decoder_.kernels()));
  open_graphs();
}

void Runner::drop_weights() {
  ahead_.reset();
  parameters_.reset();
  count_packed(0);
}

// As many blocks as are wanted, or as there is room for; as many on all TP and PP peers, which plan the same steps.
int64_t Runner::blocks_for(int64_t max_context_tokens) const {
  const CacheShape shape = cache_shape(options_, decoder_, decoder_.num_layers());
  const int64_t wanted = common_blocks(options_, decoder_, max_context_tokens);
  const std::optional<int64_t> left = arena_.left_bytes();
  if (!left) return wanted;
  int64_t for_blocks = *left;
  if (graphs_) for_blocks -= graphs_->logits_bytes() + shape.bytes_per_block();  // less the spare one
  if (graphs_) for_blocks -= graph_bytes_ - graphs_->shared_bytes();             // of which what is captured is counted already
  int64_t blocks = std::min(wanted, for_blocks / shape.bytes_per_block());
  for (comm::Group* peers : {decoder_.place().tp, decoder_.place().pp}) {
    if (!peers || peers->size() == 1) continue;
    at::Tensor fewest = at::full({1}, -blocks, at::kLong);
    peers->all_reduce(fewest, comm::ReduceOp::kMax);
    blocks = -fewest.item<int64_t>();
  }
  const int64_t one = std::min(wanted, (max_context_tokens + shape.block_tokens - 1) / shape.block_tokens);
  if (blocks < one)
    throw UserError("memory." + arena_.name() + "_mib",
                    join_text("leaves ", *left, " bytes for the KV cache", graphs_ ? " and graphs of decode steps" : "",
                              ", and a sequence of ", max_context_tokens, " tokens takes ", one * shape.bytes_per_block()),
                    "a larger budget, memory.offload_train_optimizer and its like, or a shorter context");
  return blocks;
}

// What graphs will share, before a cache takes the rest of a budget; known once they are captured.
void Runner::measure_graphs(const CacheShape& shape) {
  if (!graphs_) return;
  if (parameters_ && arena_.left_bytes() && graph_bytes_ == 0) {
    KvCache least(decoder_.kernels().attention(), shape, 1, arena_, true);
    least.open();
    graph_bytes_ = graphs_->measured_bytes(*parameters_, least, most_blocks_);
    graphs_->close();
    least.close();
  }
  graph_bytes_ = std::max(graph_bytes_, graphs_->shared_bytes());
}

void Runner::open_cache(int64_t max_context_tokens) {
  if (const int64_t unit = decoder_.kernels().attention().block_multiple; options_.kv_block_tokens % unit != 0)
    throw UserError("rollout.kv_block_tokens", join_text("is ", options_.kv_block_tokens), join_text("a multiple of ", unit));
  const CacheShape shape = cache_shape(options_, decoder_, decoder_.num_layers());
  most_blocks_ = (max_context_tokens + options_.kv_block_tokens - 1) / options_.kv_block_tokens;
  measure_graphs(shape);
  const int64_t blocks = blocks_for(max_context_tokens), before = cache_ ? cache_->num_blocks() : 0;
  if (blocks < before || blocks - before > before / kFewerBlocks) {
    if (graphs_) graphs_->forget();
    cache_.emplace(decoder_.kernels().attention(), shape, blocks, arena_, graphs_.has_value());
  }
  cache_->open();
  open_graphs();
}

void Runner::close_cache() {
  ahead_.reset();
  if (graphs_) graphs_->close();
  if (cache_) cache_->close();
}

void Runner::open_graphs() {
  if (graphs_ && parameters_ && num_blocks() > 0) graphs_->open(*parameters_, *cache_, most_blocks_);
}

// A step in which each sequence has one token, whose logits are wanted.
bool Runner::fits_graph(const Plan& plan, const model::kernel::PagedTokens& tokens) const {
  return graphs_ && plan.rows.size() == plan.ids.size() &&
         std::ranges::all_of(plan.runs, [](const Plan::Run& run) { return run.count == 1; }) &&
         graphs_->fit(std::ssize(plan.ids), tokens.block_tables_SB.size(1));
}

StepOutput Runner::run(const Plan& plan, bool record_routes) {
  TANDEM_CHECK(parameters_, "the engine has no weights");
  at::NoGradGuard no_grad;
  device::backend_of(arena_.device()).use(arena_.device());  // any thread may step
  for (const BlockCopy& copy : plan.copies) cache_->copy(copy.from, copy.to);
  if (plan.ids.empty()) {
    ahead_.reset();
    if (decoder_.ep()) decoder_.serve_experts(*parameters_);
    return {};
  }
  if (const std::optional<Ahead> ahead = std::exchange(ahead_, std::nullopt); ahead && !record_routes)
    return {run_with(plan, *ahead), {}};
  return run_now(plan, record_routes);
}

StepOutput Runner::run_now(const Plan& plan, bool record_routes) {
  StepOutput out;
  const model::kernel::PagedTokens tokens = paged_tokens(plan.runs, options_.kv_block_tokens, decoder_.kernels().parity());
  if (fits_graph(plan, tokens) && !record_routes) {
    out.logits_SRV = graphs_->run(at::tensor(plan.ids, at::kLong), tokens).unsqueeze(0);
    return out;
  }
  PagedContext context(*cache_, decoder_, decoder_.kernels().attention().plan_paged(tokens, decoder_.kernels().device()));
  model::TokenBatch batch{at::tensor(plan.ids, at::kLong), tokens.positions_T, at::tensor(plan.rows), {}, {}};
  if (record_routes)
    batch.recorded_routes_TX = at::full({std::ssize(plan.ids), decoder_.route_width()}, -1, decoder_.kernels().options(at::kShort));
  const at::Tensor hidden_RH = decoder_.forward_stages(*parameters_, batch, context);
  if (record_routes) decoder_.merge_routes(batch.recorded_routes_TX);
  if (record_routes) out.routes_TX = batch.recorded_routes_TX.cpu();
  if (!plan.rows.empty() && hidden_RH.defined()) out.logits_SRV = gathered_logits(hidden_RH);
  return out;
}

// Logits of what ran ahead, and of the rest, which runs now as a plan of its own.
at::Tensor Runner::run_with(const Plan& plan, const Ahead& ahead) {
  Plan rest;
  std::vector<int64_t> from, to, rest_to;  // rows of the ahead, and of the plan
  int64_t row = 0;
  for (const Plan::Run& run : plan.runs) {
    const bool draws = row < std::ssize(plan.rows) && plan.rows[static_cast<size_t>(row)] < run.begin + run.count;
    const auto it = ahead.of.find(run.sequence);
    const auto has_its_place = [&](const Ahead::Row& ran) {
      return run.count == 1 && run.position == ran.position && run.blocks.size() >= ran.blocks.size() &&
             std::ranges::equal(run.blocks.first(ran.blocks.size()), ran.blocks);
    };
    if (draws && it != ahead.of.end() && has_its_place(it->second)) {
      from.push_back(it->second.row);
      to.push_back(row++);
      continue;
    }
    Plan::Run& part = rest.runs.emplace_back(run);
    part.begin = std::ssize(rest.ids);
    rest.ids.insert(rest.ids.end(), plan.ids.begin() + run.begin, plan.ids.begin() + run.begin + run.count);
    if (!draws) continue;
    rest.rows.push_back(std::ssize(rest.ids) - 1);
    rest_to.push_back(row++);
  }
  if (from.empty()) return run_now(plan, false).logits_SRV;
  num_ran_ahead_ += std::ssize(from);
  const auto index = [&](const std::vector<int64_t>& rows) { return at::tensor(rows).to(ahead.logits_RV.device(), /*non_blocking=*/true); };
  const bool is_all = std::ssize(from) == ahead.logits_RV.size(0) && std::ranges::is_sorted(from);
  // A copy where another graph may run before they are read.
  const at::Tensor ran = is_all && rest.runs.empty() ? ahead.logits_RV : ahead.logits_RV.index_select(0, index(from));
  if (rest.runs.empty()) return ran.unsqueeze(0);
  const at::Tensor now_SRV = run_now(rest, false).logits_SRV;
  at::Tensor all = at::empty({1, std::ssize(plan.rows), ran.size(1)}, ran.options());
  all[0].index_copy_(0, index(to), ran);
  if (!rest_to.empty()) all[0].index_copy_(0, index(rest_to), now_SRV[0]);
  return all;
}

void Runner::run_ahead(const Plan& plan, const at::Tensor& tokens_D, std::span<const int64_t> draws) {
  TANDEM_CHECK(graphs_ && parameters_ && tokens_D.size(0) == std::ssize(plan.draws), "tokens to run ahead");
  std::unordered_map<SequenceId, const Plan::Run*> run_of;
  for (const Plan::Run& run : plan.runs) run_of.emplace(run.sequence, &run);
  Ahead ahead;
  std::vector<Plan::Run> runs;
  std::vector<int64_t> from;
  for (const int64_t draw : draws) {
    const Plan::Run& run = *run_of.at(plan.draws[static_cast<size_t>(draw)].sequence);
    const int64_t position = run.position + run.count, num_blocks = position / options_.kv_block_tokens + 1;
    if (num_blocks > std::ssize(run.blocks)) continue;
    const auto blocks = run.blocks.first(static_cast<size_t>(num_blocks));
    ahead.of.emplace(run.sequence, Ahead::Row{std::ssize(from), position, {blocks.begin(), blocks.end()}});
    runs.push_back({run.sequence, std::ssize(from), 1, position, blocks});
    from.push_back(draw);
  }
  const model::kernel::PagedTokens tokens = paged_tokens(runs, options_.kv_block_tokens, decoder_.kernels().parity());
  if (runs.empty() || !graphs_->fit(std::ssize(runs), tokens.block_tables_SB.size(1))) return;
  at::NoGradGuard no_grad;
  const at::Tensor ids_R = tokens_D.index_select(0, at::tensor(from).to(tokens_D.device(), /*non_blocking=*/true));
  ahead.logits_RV = graphs_->run(ids_R, tokens);
  ahead_ = std::move(ahead);
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
