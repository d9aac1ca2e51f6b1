// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/decoder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "tandem/model/kernel/heads.h"
#include "tandem/model/kernel/packed.h"
#include "tandem/model/rope.h"

namespace tandem::model {
at::Tensor PackedContext::attend(int64_t, const at::Tensor& qkv, const kernel::AttentionShape& shape) {
  if (parallel_.group) return kernel::context_attention(qkv, trees_, shape, parallel_, parity_);
  return kernel::attention(qkv, trees_, shape, parity_);
}

namespace {

kernel::ExpertPlace expert_place(const ModelConfig& config, const RankPlace& place) {
  const Layout& layout = place.layout;
  kernel::ExpertPlace out;
  for (int i = 0; i <= layout.ep; ++i) out.bounds.push_back(first_expert(config.moe.num_experts, layout.ep, i));
  out.index = layout.ep_rank(place.rank);
  out.peers = config.moe.num_experts > 0 ? place.ep : nullptr;
  if (!out.peers) return out;
  out.num_slices = layout.tp / layout.expert_tp();
  out.slice = layout.tp_rank(place.rank) / layout.expert_tp();
  return out;
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, const kernel::Gemm& gemm, const RankPlace& place)
    : config_(config), gemm_(gemm), tp_(place.tp), expert_place_(expert_place(config, place)), cos_sin_PD_(rope_table(config)) {
  const int64_t heads = config.num_heads / tp_size();
  shape_ = {heads, local_kv_heads(config, tp_size()), config.head_dim};
  // A latent is one key and value for all heads; see latent_attention.
  if (config.mla.kv_rank > 0) shape_ = {heads, 1, config.mla.kv_rank + config.mla.rope_dim, latent_softmax_scale(config)};
  first_row_ = tp_ ? config.vocab_size / tp_->size() * tp_->rank() : 0;
}

struct Decoder::Pass {
  const ModelParameters& parameters;
  const TokenBatch& batch;
  AttentionContext& context;
};

at::Tensor Decoder::plain_attention(const Pass& pass, size_t index, const at::Tensor& x) const {
  const LayerParameters& p = pass.parameters.layers[index];
  at::Tensor qkv = kernel::linear(gemm_, kernel::enter_tensor_parallel(x, tp_), p.qkv);
  if (config_.head_norm) qkv = kernel::head_norm(qkv, p.head_norm, config_.norm_eps, shape_);
  qkv = kernel::rope(qkv, p.qkv_bias, cos_sin_PD_, pass.batch.positions_T, shape_);
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
  both = kernel::rope(both, {}, cos_sin_PD_, positions, {heads + 1, 0, R}).view({T, heads + 1, R});
  return {both.narrow(1, 0, heads), both.select(1, heads)};
}

// A key is [up(latent) | rotated], a value up(latent). Where a cache holds the latents, the up-projections move to the queries
// and the outputs: one key [latent | rotated] then serves all heads, and is its own value ("absorbed"). Parity mode does so
// in training too, for the same bits.
at::Tensor Decoder::latent_attention(const Pass& pass, size_t index, const at::Tensor& x) const {
  constexpr double kEps = 1e-6;  // of the norms of latents, whatever the model's is
  const LayerParameters& p = pass.parameters.layers[index];
  const MlaConfig& m = config_.mla;
  const int64_t T = x.size(0), heads = shape_.num_heads;
  const at::Tensor q_in = m.q_rank > 0 ? kernel::add_rms_norm(kernel::linear(gemm_, x, p.q_down), {}, p.q_down_norm, kEps).second : x;
  const at::Tensor q = kernel::linear(gemm_, kernel::enter_tensor_parallel(q_in, tp_), p.q_up).view({T, heads, m.nope_dim + m.rope_dim});
  const at::Tensor down = kernel::linear(gemm_, x, p.kv_down);
  at::Tensor latent = kernel::add_rms_norm(down.narrow(1, 0, m.kv_rank).contiguous(), {}, p.kv_down_norm, kEps).second;
  latent = kernel::enter_tensor_parallel(latent, tp_);
  const at::Tensor shared = kernel::enter_tensor_parallel(down.narrow(1, m.kv_rank, m.rope_dim).contiguous(), tp_);
  const at::Tensor q_nope = q.narrow(2, 0, m.nope_dim);
  const auto [q_rope, k_rope] = rotate_latent(q.narrow(2, m.nope_dim, m.rope_dim), shared, pass.batch.positions_T);
  const auto layer = static_cast<int64_t>(index);
  const int64_t rows = m.nope_dim + m.v_dim;
  if (pass.context.keeps_keys() || gemm_.parity()) {
    const at::Tensor up = kernel::head_linear(gemm_, flat(q_nope), p.kv_up, {heads, rows, 0, m.nope_dim, false});
    const at::Tensor query = flat(at::cat({up.view({T, heads, m.kv_rank}), q_rope}, 2));
    const at::Tensor key = at::cat({latent, k_rope}, 1);
    const at::Tensor mixed = pass.context.attend(layer, at::cat({query, key, key}, 1), shape_).view({T, heads, shape_.head_dim});
    return kernel::head_linear(gemm_, flat(mixed.narrow(2, 0, m.kv_rank)), p.kv_up,
                               {heads, rows, m.nope_dim, m.v_dim, true});
  }
  const at::Tensor up = kernel::linear(gemm_, latent, p.kv_up).view({T, heads, rows});
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

// TP ranks run the same router on the same tokens and their gradients add up, so each takes its share.
kernel::RouterLoss Decoder::router_loss(const TokenBatch& batch, size_t index, bool some_rows) const {
  if (!batch.router_losses) return {};
  RouterLosses& losses = *batch.router_losses;
  kernel::RouterLoss loss;
  loss.z = static_cast<float>(losses.z / tp_size());
  loss.balance = static_cast<float>(losses.balance / tp_size());
  if (losses.balance > 0) loss.load_E = losses.load_LE[sparse_before(index)];
  if (!some_rows) loss.counted_T = losses.counted_T;
  loss.z_sum = &losses.z_sum;
  loss.balance_sum = &losses.balance_sum;
  return loss;
}

at::Tensor Decoder::mlp(const at::Tensor& x, const kernel::Parameter& gate_up, const kernel::Parameter& down) const {
  return kernel::linear(gemm_, kernel::swiglu(kernel::linear(gemm_, x, gate_up)), down);
}

at::Tensor Decoder::experts(const Pass& pass, size_t index, const at::Tensor& x) const {
  const LayerParameters& p = pass.parameters.layers[index];
  const MoeConfig& m = config_.moe;
  const TokenBatch& batch = pass.batch;
  const bool some_rows = x.size(0) != batch.ids_T.size(0);  // of the last layer
  const kernel::Router router{p.router,
                              p.router_bias.value,
                              {m.num_experts, m.experts_per_token, m.num_groups, m.top_groups, m.sigmoid, m.normalize,
                               static_cast<float>(m.scaling)},
                              router_loss(batch, index, some_rows)};
  at::Tensor chosen;
  if (batch.replayed_routes_TX.defined()) {
    chosen = layer_routes(batch.replayed_routes_TX, index);
    if (some_rows) chosen = chosen.index_select(0, batch.rows_R);
    chosen = chosen.to(at::kLong).contiguous();
  }
  const kernel::Routing routing = kernel::route(gemm_, x, router, chosen);
  if (batch.recorded_routes_TX.defined()) {
    const at::Tensor to = layer_routes(batch.recorded_routes_TX, index), taken = routing.experts_Tk.to(at::kShort);
    if (some_rows) to.index_copy_(0, batch.rows_R, taken);
    else to.copy_(taken);
  }
  const at::Tensor out = kernel::experts(gemm_, x, routing, {p.expert_gate_up, p.expert_down, expert_place_});
  return m.num_shared_experts > 0 ? at::add(out, mlp(x, p.shared_gate_up, p.shared_down)) : out;
}

std::pair<at::Tensor, at::Tensor> Decoder::layer(const Pass& pass, size_t index, const at::Tensor& x, const at::Tensor& delta) const {
  const LayerParameters& p = pass.parameters.layers[index];
  auto [residual, normed] = kernel::add_rms_norm(x, delta, p.input_norm, config_.norm_eps);
  at::Tensor attended = config_.mla.kv_rank > 0 ? latent_attention(pass, index, normed) : plain_attention(pass, index, normed);
  if (index + 1 == pass.parameters.layers.size() && pass.batch.rows_R.defined()) {
    residual = kernel::select_rows(residual, pass.batch.rows_R);
    attended = kernel::select_rows(attended, pass.batch.rows_R);
  }
  attended = kernel::linear(gemm_, attended, p.output);
  auto [middle, post] = kernel::add_rms_norm(residual, kernel::leave_tensor_parallel(attended, tp_), p.post_norm, config_.norm_eps);
  const at::Tensor entered = kernel::enter_tensor_parallel(post, tp_);
  const at::Tensor out = p.router.value.defined() ? experts(pass, index, entered) : mlp(entered, p.gate_up, p.down);
  return {middle, kernel::leave_tensor_parallel(out, tp_)};
}

at::Tensor Decoder::forward(const ModelParameters& parameters, const TokenBatch& batch, AttentionContext& context, bool recompute) const {
  at::Tensor x = kernel::leave_tensor_parallel(kernel::embed(parameters.embedding, batch.ids_T, first_row_), tp_), delta;
  if (parameters.adapted && at::GradMode::is_enabled()) x.requires_grad_(true);  // the graph starts behind the frozen embedding
  const Pass pass{parameters, batch, context};
  for (size_t i = 0; i < parameters.layers.size(); ++i) {
    const auto run = [this, pass, i](const at::Tensor& a, const at::Tensor& b) { return layer(pass, i, a, b); };
    std::tie(x, delta) = recompute ? kernel::recompute(run, x, delta) : run(x, delta);
  }
  return kernel::add_rms_norm(x, delta, parameters.final_norm, config_.norm_eps).second;
}

void Decoder::serve_experts(const ModelParameters& parameters) const {
  const int64_t choices = config_.moe.experts_per_token;
  const kernel::Routing routing{at::empty({0, choices}, at::kLong), at::empty({0, choices}, at::kFloat)};
  for (const LayerParameters& p : parameters.layers) {
    if (!p.router.value.defined()) continue;
    const at::Tensor none = at::empty({0, config_.hidden_size}, p.router.value.options());
    kernel::experts(gemm_, none, routing, {p.expert_gate_up, p.expert_down, expert_place_});
  }
}

kernel::HeadOutput Decoder::logprobs(const ModelParameters& parameters, const at::Tensor& hidden, const at::Tensor& targets,
                                     double temperature) const {
  const at::Tensor entered = kernel::enter_tensor_parallel(hidden, tp_);
  return kernel::head_logprobs(gemm_, {entered, targets, first_row_, temperature == 0 ? 1.0 : temperature, tp_}, parameters.head);
}

// Whole on every TP rank, as its hidden states are: each has the whole gradient, and nothing is to be summed.
at::Tensor Decoder::scores(const ModelParameters& parameters, const at::Tensor& hidden) const {
  return kernel::head_scores(gemm_, hidden, parameters.score);
}

at::Tensor Decoder::local_logits(const ModelParameters& parameters, const at::Tensor& hidden) const {
  if (parameters.head.packed.serves(hidden.size(0))) return kernel::packed_product(hidden, parameters.head.packed);
  at::Tensor logits = at::empty({hidden.size(0), parameters.head.value.size(0)}, hidden.options().dtype(at::kFloat));
  gemm_.forward_float(logits, hidden, parameters.head.value);
  return logits;
}

}  // namespace tandem::model
