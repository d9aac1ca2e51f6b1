// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/decoder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "tandem/base/check.h"
#include "tandem/model/op/heads.h"
#include "tandem/model/rope.h"

namespace tandem::model {

PackedContext::PackedContext(const kernel::Kernels& kernels, kernel::Trees trees, const op::ContextParallel& parallel) : kernels_(kernels) {
  if (parallel.group) {
    shared_ = std::make_shared<const op::ContextPlan>(op::context_plan(kernels, std::move(trees), parallel));
    return;
  }
  int64_t num_tokens = 0;
  for (const kernel::Tree& tree : trees) {
    num_tokens = tree.begin + tree.stem;
    for (const int64_t length : tree.branches) num_tokens += length;
  }
  plan_ = kernels.attention().plan_packed(std::move(trees), {{0, num_tokens}}, kernels.device());
}

at::Tensor PackedContext::attend(int64_t, const at::Tensor& qkv, const kernel::AttentionShape& shape) {
  return shared_ ? op::context_attention(kernels_, qkv, shared_, shape) : op::attention(kernels_, qkv, plan_, shape);
}

namespace {

op::ExpertPlace expert_place(const ModelConfig& config, const RankPlace& place) {
  op::ExpertPlace out;
  for (int i = 0; i <= place.layout.ep; ++i) out.bounds.push_back(first_expert(config.moe.num_experts, place.layout.ep, i));
  out.index = place.layout.ep_rank(place.rank);
  out.peers = place.ep;
  return out;
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, const kernel::Kernels& kernels, const RankPlace& place)
    : config_(config),
      kernels_(kernels),
      place_(place),
      layers_(layers_of(place.layout, config.num_layers, place.layout.pp_rank(place.rank))),
      expert_place_(expert_place(config, place)),
      cos_sin_PD_(rope_table(config).to(kernels.device())) {
  const int64_t heads = config.num_heads / tp_size();
  shape_ = {heads, local_kv_heads(config, tp_size()), config.head_dim};
  // A latent is one key and value for all heads; see latent_attention.
  if (config.mla.kv_rank > 0) shape_ = {heads, 1, config.mla.kv_rank + config.mla.rope_dim, latent_softmax_scale(config)};
  first_row_ = vocab_shard_rows(config, tp_size()) * place.layout.tp_rank(place.rank);
}

struct Decoder::Pass {
  const ModelParameters& parameters;
  const TokenBatch batch;  // on the device
  AttentionContext& context;
  op::RowShares tokens, wanted;  // of T and of R
  bool selective = false;            // recompute

  bool selects(size_t index) const { return index + 1 == parameters.layers.size() && batch.rows_R.defined(); }
  // Of the rows behind the attention of a layer.
  const op::RowShares& shares(size_t index) const { return selects(index) ? wanted : tokens; }
};

// Experts are dealt tokens anyway. Without them decoding has few rows and one all-reduce is quicker than two halves of it.
bool Decoder::deals_rows(const AttentionContext& context) const {
  return place_.tp && (config_.moe.num_experts > 0 || !context.keeps_keys());
}

TokenBatch Decoder::moved(TokenBatch batch) const {
  for (at::Tensor* t : {&batch.ids_T, &batch.positions_T, &batch.rows_R, &batch.replayed_routes_TX})
    if (t->defined()) *t = t->to(kernels_.device());
  return batch;
}

int64_t Decoder::carried_rows(const TokenBatch& batch, const AttentionContext& context) const {
  return op::even_shares(deals_rows(context) ? place_.tp : nullptr, batch.ids_T.size(0)).count();
}

int64_t Decoder::place_of_layer(int64_t layer) const {
  int64_t before = 0;
  for (const auto& [begin, end] : layers_) {
    if (layer < end) return before + layer - begin;
    before += end - begin;
  }
  TANDEM_CHECK(false, "layer ", layer, " is with another stage");
}

at::Tensor Decoder::enter(const at::Tensor& x, const op::RowShares& shares) const {
  return shares.group ? op::gather_rows(x, shares) : x;
}

op::Again Decoder::entered_again(const op::Again& x_again, const op::RowShares& shares) const {
  if (!x_again || !shares.group) return x_again;
  return [x_again, shares] { return op::gather_rows(x_again(), shares); };
}

// In one message.
std::vector<at::Tensor> Decoder::enter_together(std::vector<at::Tensor> parts, const op::RowShares& shares) const {
  if (!shares.group) return parts;
  const at::Tensor all = enter(at::cat(parts, 1), shares);
  int64_t column = 0;
  for (at::Tensor& part : parts) {
    const int64_t width = part.size(1);
    part = all.narrow(1, std::exchange(column, column + width), width).contiguous();
  }
  return parts;
}

at::Tensor Decoder::leave(const at::Tensor& x, const op::RowShares& shares) const {
  if (shares.group) return op::reduce_rows(x, shares);
  return place_.tp ? op::sum_ranks(x, *place_.tp) : x;
}

at::Tensor Decoder::plain_attention(const Pass& pass, size_t index, const at::Tensor& x, const op::Again& x_again) const {
  const LayerParameters& p = pass.parameters.layers[index];
  at::Tensor qkv = op::linear(kernels_, enter(x, pass.tokens), p.qkv, entered_again(x_again, pass.tokens));
  if (config_.head_norm) qkv = op::head_norm(kernels_, qkv, p.head_norm, config_.norm_eps, shape_);
  qkv = op::rope(kernels_, qkv, p.qkv_bias, {cos_sin_PD_, pass.batch.positions_T, shape_});
  return pass.context.attend(static_cast<int64_t>(index), qkv, shape_);
}

namespace {

// [T, heads, D] as rows for a kernel; with one head a reshape alone would keep the strides of what was cut.
at::Tensor flat(const at::Tensor& t) { return t.reshape({t.size(0), t.size(1) * t.size(2)}).contiguous(); }

}  // namespace

// Rotates the last query dimensions of every head and the one key [T,R] that all heads share; {[T,heads,R], [T,R]}.
std::pair<at::Tensor, at::Tensor> Decoder::rotate_latent(const at::Tensor& q, const at::Tensor& k, const at::Tensor& positions) const {
  const int64_t T = q.size(0), heads = q.size(1), R = config_.mla.rope_dim;
  at::Tensor both = at::cat({q, k.unsqueeze(1)}, 1);
  if (config_.mla.interleaved) both = both.view({T, heads + 1, R / 2, 2}).transpose(2, 3);
  both = both.reshape({T, (heads + 1) * R}).contiguous();
  both = op::rope(kernels_, both, {}, {cos_sin_PD_, positions, {heads + 1, 0, R}}).view({T, heads + 1, R});
  return {both.narrow(1, 0, heads), both.select(1, heads)};
}

// A key is [up(latent) | rotated], a value up(latent). Where a cache holds the latents, the up-projections move to the queries
// and the outputs: one key [latent | rotated] then serves all heads, and is its own value ("absorbed"). Parity mode does so
// in training too, for the same bits.
at::Tensor Decoder::latent_attention(const Pass& pass, size_t index, const at::Tensor& x, const op::Again& x_again) const {
  constexpr double kEps = 1e-6;  // of the norms of latents, whatever the model's is
  const LayerParameters& p = pass.parameters.layers[index];
  const MlaConfig& m = config_.mla;
  const int64_t T = pass.tokens.total(), heads = shape_.num_heads;
  const auto normed_latent = [&](const at::Tensor& in, const op::Parameter& norm) {
    return op::add_rms_norm(kernels_, in, {}, norm, kEps).second;
  };
  const at::Tensor q_in = m.q_rank > 0 ? normed_latent(op::linear(kernels_, x, p.q_down, x_again), p.q_down_norm) : x;
  const at::Tensor down = op::linear(kernels_, x, p.kv_down, x_again);
  const at::Tensor normed = normed_latent(down.narrow(1, 0, m.kv_rank).contiguous(), p.kv_down_norm);
  const std::vector<at::Tensor> entered = enter_together({q_in, normed, down.narrow(1, m.kv_rank, m.rope_dim).contiguous()}, pass.tokens);
  const at::Tensor &latent = entered[1], &shared = entered[2];
  const at::Tensor q = op::linear(kernels_, entered[0], p.q_up).view({T, heads, m.nope_dim + m.rope_dim});
  const at::Tensor q_nope = q.narrow(2, 0, m.nope_dim);
  const auto [q_rope, k_rope] = rotate_latent(q.narrow(2, m.nope_dim, m.rope_dim), shared, pass.batch.positions_T);
  const auto layer = static_cast<int64_t>(index);
  const int64_t rows = m.nope_dim + m.v_dim;
  if (pass.context.keeps_keys() || kernels_.parity()) {
    const at::Tensor up = op::head_linear(kernels_, flat(q_nope), p.kv_up, {heads, rows, 0, m.nope_dim, false});
    const at::Tensor query = flat(at::cat({up.view({T, heads, m.kv_rank}), q_rope}, 2));
    const at::Tensor key = at::cat({latent, k_rope}, 1);
    const at::Tensor mixed = pass.context.attend(layer, at::cat({query, key, key}, 1), shape_).view({T, heads, shape_.head_dim});
    return op::head_linear(kernels_, flat(mixed.narrow(2, 0, m.kv_rank)), p.kv_up,
                               {heads, rows, m.nope_dim, m.v_dim, true});
  }
  const at::Tensor up = op::linear(kernels_, latent, p.kv_up).view({T, heads, rows});
  const int64_t D = std::max(m.nope_dim + m.rope_dim, m.v_dim);
  const auto padded = [&](const at::Tensor& t) {  // heads of D, as packed attention has them
    return flat(at::cat({t, at::zeros({T, heads, D - t.size(2)}, t.options())}, 2));
  };
  const at::Tensor key = at::cat({up.narrow(2, 0, m.nope_dim), k_rope.unsqueeze(1).expand({T, heads, m.rope_dim})}, 2);
  const at::Tensor qkv = at::cat({padded(at::cat({q_nope, q_rope}, 2)), padded(key), padded(up.narrow(2, m.nope_dim, m.v_dim))}, 1);
  const at::Tensor mixed = pass.context.attend(layer, qkv, {heads, heads, D, shape_.softmax_scale});
  return flat(mixed.view({T, heads, D}).narrow(2, 0, m.v_dim));
}

int64_t Decoder::route_width() const {
  int64_t layers = 0;
  for (int64_t i = 0; i < config_.num_layers; ++i) layers += config_.is_sparse(i);
  return layers * config_.moe.experts_per_token;
}

// Sparse layers before this one.
int64_t Decoder::sparse_before(size_t index) const {
  int64_t before = 0;
  for (size_t i = 0; i < index; ++i) before += config_.is_sparse(static_cast<int64_t>(i));
  return before;
}

// A layer's columns, as a view.
at::Tensor Decoder::layer_routes(const at::Tensor& routes, size_t index) const {
  return routes.narrow(1, sparse_before(index) * config_.moe.experts_per_token, config_.moe.experts_per_token);
}

op::RouterLoss Decoder::router_loss(const Pass& pass, size_t index) const {
  if (!pass.batch.router_losses) return {};
  RouterLosses& losses = *pass.batch.router_losses;
  op::RouterLoss loss;
  loss.terms.z = static_cast<float>(losses.z);
  loss.terms.balance = static_cast<float>(losses.balance);
  if (losses.balance > 0) loss.terms.load_E = losses.load_LE[sparse_before(index)].to(kernels_.device());
  if (!pass.selects(index) && pass.batch.rows_R.defined())
    loss.terms.counted_T = at::zeros({pass.tokens.total()}, kernels_.options(at::kBool))
                         .index_fill_(0, pass.batch.rows_R, true)
                         .narrow(0, pass.tokens.begin(), pass.tokens.count());
  loss.z_sum = &losses.z_sum;
  loss.balance_sum = &losses.balance_sum;
  return loss;
}

at::Tensor Decoder::mlp(const Pass& pass, const at::Tensor& x, const MlpWeights& weights, const op::Again& x_again) const {
  const at::Tensor gate_up = op::linear(kernels_, x, weights.gate_up, x_again);
  op::Again active_again;
  if (pass.selective) active_again = [this, kept = gate_up.detach()] { return op::swiglu(kernels_, kept); };
  return op::linear(kernels_, op::swiglu(kernels_, gate_up), weights.down, active_again);
}

// A rank with some of an expert's columns takes the tokens of those with the others, and all add up.
at::Tensor Decoder::routed(const LayerParameters& p, const at::Tensor& x, const op::Routing& routing,
                           const op::RowShares& shares) const {
  const op::ExpertWeights weights{p.expert_gate_up, p.expert_down, expert_place_};
  if (!place_.etp) return op::experts(kernels_, x, routing, weights);
  const int first = place_.layout.tp_rank(place_.rank) / place_.etp->size() * place_.etp->size();
  const op::RowShares part = op::shares_of(shares, *place_.etp, first);
  const op::Routing all{op::gather_rows(routing.experts_Tk, part), op::gather_rows(routing.weights_Tk, part)};
  return op::reduce_rows(op::experts(kernels_, op::gather_rows(x, part), all, weights), part);
}

// x: this rank's rows, as is what it returns.
at::Tensor Decoder::experts(const Pass& pass, size_t index, const at::Tensor& x) const {
  const LayerParameters& p = pass.parameters.layers[index];
  const MoeConfig& m = config_.moe;
  const TokenBatch& batch = pass.batch;
  const op::RowShares& shares = pass.shares(index);
  const op::Router router{p.router,
                              p.router_bias.value,
                              {m.num_experts, m.experts_per_token, m.num_groups, m.top_groups, m.sigmoid, m.normalize,
                               static_cast<float>(m.scaling)},
                              router_loss(pass, index)};
  const auto mine = [&](const at::Tensor& t) { return t.narrow(0, shares.begin(), shares.count()); };
  at::Tensor chosen;
  if (batch.replayed_routes_TX.defined()) {
    chosen = layer_routes(batch.replayed_routes_TX, index);
    chosen = pass.selects(index) ? chosen.index_select(0, mine(batch.rows_R)) : mine(chosen);
    chosen = chosen.to(at::kLong).contiguous();
  }
  const op::Routing routing = op::route(kernels_, x, router, chosen);
  if (batch.recorded_routes_TX.defined()) {
    const at::Tensor to = layer_routes(batch.recorded_routes_TX, index), taken = routing.experts_Tk.to(at::kShort);
    if (pass.selects(index)) to.index_copy_(0, mine(batch.rows_R), taken);
    else mine(to).copy_(taken);
  }
  const at::Tensor out = routed(p, x, routing, shares);
  return m.num_shared_experts > 0 ? at::add(out, leave(mlp(pass, enter(x, shares), {p.shared_gate_up, p.shared_down}, {}), shares)) : out;
}

std::pair<at::Tensor, at::Tensor> Decoder::layer(const Pass& pass, size_t index, const at::Tensor& x, const at::Tensor& delta) const {
  const LayerParameters& p = pass.parameters.layers[index];
  const auto again = [&](const at::Tensor& summed, const op::Parameter& norm) -> op::Again {
    if (!pass.selective) return {};
    return [this, kept = summed.detach(), norm, eps = config_.norm_eps] { return op::rms_norm(kernels_, kept, norm, eps); };
  };
  auto [residual, normed] = op::add_rms_norm(kernels_, x, delta, p.input_norm, config_.norm_eps);
  const op::Again normed_again = again(residual, p.input_norm);
  at::Tensor attended = config_.mla.kv_rank > 0 ? latent_attention(pass, index, normed, normed_again)
                                                : plain_attention(pass, index, normed, normed_again);
  if (pass.selects(index)) {
    attended = op::select_rows(kernels_, attended, pass.batch.rows_R);
    residual = op::own_rows(op::select_rows(kernels_, enter(residual, pass.tokens), pass.batch.rows_R), pass.wanted);
  }
  const op::RowShares& shares = pass.shares(index);
  attended = leave(op::linear(kernels_, attended, p.output), shares);
  auto [middle, post] = op::add_rms_norm(kernels_, residual, attended, p.post_norm, config_.norm_eps);
  if (p.router.value.defined()) return {middle, experts(pass, index, post)};
  return {middle, leave(mlp(pass, enter(post, shares), {p.gate_up, p.down}, entered_again(again(middle, p.post_norm), shares)), shares)};
}

at::Tensor Decoder::forward(const ModelParameters& parameters, const TokenBatch& batch, AttentionContext& context,
                            const PassOptions& options) const {
  comm::Group* dealt = deals_rows(context) ? place_.tp : nullptr;
  const int64_t T = batch.ids_T.size(0), R = batch.rows_R.defined() ? batch.rows_R.numel() : T;
  const Pass pass{parameters, moved(batch), context, op::even_shares(dealt, T), op::even_shares(dealt, R),
                  options.recompute == Recompute::kSelective};
  at::Tensor x = options.carried_tH, delta;
  if (begins(options.chunk)) {
    x = leave(op::embed(kernels_, parameters.embedding, pass.batch.ids_T, first_row_), pass.tokens);
    if (parameters.adapted && at::GradMode::is_enabled()) x.requires_grad_(true);  // the graph starts behind the frozen embedding
  }
  const auto [begin, end] = layers_[static_cast<size_t>(options.chunk)];
  for (int64_t i = begin; i < end; ++i) {
    if (options.layer_done) x = op::after_backward(x, [done = options.layer_done, i] { done(i); });
    const auto run = [this, pass, i](const at::Tensor& a, const at::Tensor& b) { return layer(pass, static_cast<size_t>(i), a, b); };
    std::tie(x, delta) = options.recompute == Recompute::kFull ? op::recompute(run, x, delta) : run(x, delta);
  }
  if (!ends(options.chunk)) return at::add(x, delta);
  return enter(op::add_rms_norm(kernels_, x, delta, parameters.final_norm, config_.norm_eps).second,
               pass.shares(parameters.layers.size() - 1));
}

at::Tensor Decoder::forward_stages(const ModelParameters& parameters, const TokenBatch& batch, AttentionContext& context) const {
  if (!place_.pp) return forward(parameters, batch, context);
  at::NoGradGuard no_grad;
  const int stage = place_.pp->rank(), stages = place_.pp->size();
  at::Tensor out;
  for (int chunk = 0; chunk < num_chunks(); ++chunk) {
    PassOptions options;
    options.chunk = chunk;
    if (!begins(chunk)) {
      options.carried_tH = at::empty({carried_rows(batch, context), config_.hidden_size}, kernels_.options(kernels_.dtype()));
      place_.pp->receive(options.carried_tH, (stage + stages - 1) % stages, activation_tag(stage == 0 ? chunk - 1 : chunk));
    }
    out = forward(parameters, batch, context, options);
    if (!ends(chunk)) place_.pp->send(out, (stage + 1) % stages, activation_tag(chunk));
  }
  return has_head() ? out : at::Tensor();
}

void Decoder::serve_experts(const ModelParameters& parameters) const {
  const int64_t choices = config_.moe.experts_per_token;
  const op::Routing routing{at::empty({0, choices}, kernels_.options(at::kLong)), at::empty({0, choices}, kernels_.options(at::kFloat))};
  const op::RowShares none = op::even_shares(place_.tp, 0);
  for (const LayerParameters& p : parameters.layers)
    if (p.router.value.defined()) routed(p, at::empty({0, config_.hidden_size}, p.router.value.options()), routing, none);
}

void Decoder::merge_routes(const at::Tensor& recorded) const {
  for (comm::Group* peers : {place_.tp, place_.pp}) {
    if (!peers) continue;
    at::Tensor all = recorded.to(at::kFloat);
    peers->all_reduce(all, comm::ReduceOp::kMax);
    recorded.copy_(all);
  }
}

op::HeadOutput Decoder::logprobs(const ModelParameters& parameters, const at::Tensor& hidden, const at::Tensor& targets,
                                     double temperature) const {
  const at::Tensor there = targets.to(kernels_.device());
  return op::head_logprobs(kernels_, {hidden, there, first_row_, temperature == 0 ? 1.0 : temperature, place_.tp}, parameters.head);
}

// Every TP rank computes all of them, and the gradients of the ranks add up.
at::Tensor Decoder::scores(const ModelParameters& parameters, const at::Tensor& hidden) const {
  return op::scale_gradient(op::head_scores(kernels_, hidden, parameters.score), 1.0 / tp_size());
}

at::Tensor Decoder::local_logits(const ModelParameters& parameters, const at::Tensor& hidden) const {
  if (parameters.head.packed.serves(hidden.size(0))) return kernels_.product().packed_product(hidden, parameters.head.packed);
  at::Tensor logits = at::empty({hidden.size(0), parameters.head.value.size(0)}, hidden.options().dtype(at::kFloat));
  kernels_.forward_float(logits, hidden, parameters.head.value);
  return logits;
}

}  // namespace tandem::model
