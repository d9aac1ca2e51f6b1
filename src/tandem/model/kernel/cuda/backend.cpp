// SPDX-License-Identifier: Apache-2.0
// The table of this folder: that of aten, and kernels of our own for what libtorch does in many small steps.
#include "tandem/model/kernel/backend.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>

#include "tandem/base/check.h"
#include "tandem/model/kernel/aten/aten.h"
#include "tandem/model/kernel/cuda/program.h"

namespace tandem::model::kernel::cuda {
namespace {

constexpr int kThreads = 256, kRowThreads = 512, kDrawThreads = 1024;  // of a row of logits, of a draw
constexpr int64_t kWeightRows = 128;  // of a partial sum of the gradient of a norm's weight

void* address(const at::Tensor& t) { return t.defined() ? t.data_ptr() : nullptr; }
int64_t blocks_of(int64_t elements) { return (elements + kThreads - 1) / kThreads; }

Normed add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight, double eps) {
  const int64_t H = x.size(1);
  TANDEM_CHECK(x.is_contiguous() && (!delta.defined() || delta.is_contiguous()) && weight.is_contiguous(), "rows of a norm");
  const at::Tensor sum = delta.defined() ? at::empty_like(x) : x, normed = at::empty_like(x);
  const at::Tensor rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  void *px = address(x), *pd = address(delta), *pw = address(weight), *ps = address(sum), *pn = address(normed), *pr = address(rstd);
  const auto epsilon = static_cast<float>(eps);
  launch("add_rms_norm", x, x.size(0), kThreads, {&px, &pd, &pw, &ps, &pn, &pr, &H, &epsilon});
  return {sum, normed, rstd};
}

at::Tensor rms_norm_backward(const NormGrad& in, at::Tensor& weight_grad) {
  const at::Tensor d = in.d_normed_TH.contiguous(), d_sum = in.d_sum_TH.defined() ? in.d_sum_TH.contiguous() : in.d_sum_TH;
  const at::Tensor &x = in.x_TH, dx = at::empty_like(x);
  TANDEM_CHECK(x.is_contiguous() && in.weight_H.is_contiguous() && in.rstd_T.is_contiguous(), "rows of a norm");
  const int64_t T = x.size(0), H = x.size(1);
  void *pd = address(d), *ps = address(d_sum), *px = address(x), *pw = address(in.weight_H), *pr = address(in.rstd_T), *po = address(dx);
  launch("rms_norm_backward", x, T, kThreads, {&pd, &ps, &px, &pw, &pr, &po, &H});
  if (!weight_grad.defined() || T == 0) return dx;
  const int64_t parts = (T + kWeightRows - 1) / kWeightRows;
  const at::Tensor sums = at::empty({parts, H}, x.options().dtype(at::kFloat));
  void* pp = address(sums);
  launch("rms_norm_weight", x, parts * blocks_of(H), kThreads, {&pd, &px, &pr, &pp, &T, &H, &kWeightRows});
  weight_grad.add_(sums.sum(0));
  return dx;
}

at::Tensor rope(const at::Tensor& qkv, const at::Tensor& bias, const Rotation& rotation, bool forward) {
  const AttentionShape& s = rotation.shape;
  const int64_t heads = s.num_heads + 2 * s.num_kv_heads, turned = s.num_heads + s.num_kv_heads, D = s.head_dim;
  TANDEM_CHECK(qkv.is_contiguous() && rotation.positions_T.is_contiguous(), "rows of heads");
  const at::Tensor out = at::empty_like(qkv);
  void *pi = address(qkv), *pb = address(bias), *pc = address(rotation.cos_sin_PD), *pp = address(rotation.positions_T), *po = address(out);
  const float sign = forward ? 1 : -1;
  launch("rope", qkv, qkv.size(0), kThreads, {&pi, &pb, &pc, &pp, &po, &heads, &turned, &D, &sign});
  return out;
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  const int64_t F = gate_up.size(1) / 2, all = gate_up.size(0) * F;
  TANDEM_CHECK(gate_up.is_contiguous(), "rows of gates");
  const at::Tensor out = at::empty({gate_up.size(0), F}, gate_up.options());
  void *pi = address(gate_up), *po = address(out);
  launch("swiglu", gate_up, blocks_of(all), kThreads, {&pi, &po, &F, &all});
  return out;
}

at::Tensor swiglu_backward(const at::Tensor& gate_up, const at::Tensor& gradient) {
  TANDEM_CHECK(gate_up.is_contiguous(), "rows of gates");
  const at::Tensor d = gradient.contiguous(), out = at::empty_like(gate_up);
  const int64_t F = d.size(1), all = d.numel();
  void *pi = address(gate_up), *pd = address(d), *po = address(out);
  launch("swiglu_backward", gate_up, blocks_of(all), kThreads, {&pi, &pd, &po, &F, &all});
  return out;
}

void write_cache(const at::Tensor& qkv, const at::Tensor& tables, const at::Tensor& positions, const AttentionShape& s,
                 const PagedCache& cache) {
  const int64_t Q = s.q_width(), KD = s.num_kv_heads * s.head_dim, blocks = tables.size(1);
  TANDEM_CHECK(qkv.is_contiguous() && tables.is_contiguous() && positions.is_contiguous(), "rows for the cache");
  void *pq = address(qkv), *pt = address(tables), *pp = address(positions), *pk = address(cache.keys), *pv = address(cache.values);
  launch("write_cache", qkv, qkv.size(0), kThreads, {&pq, &pt, &pp, &pk, &pv, &Q, &KD, &blocks, &cache.block_tokens});
}

at::Tensor combine_parts(const at::Tensor& o, const at::Tensor& lse, const aten::FlashPages& pages) {
  const int64_t C = pages.num_parts, P = o.size(0), N = o.size(1), D = o.size(2);
  const at::Tensor parts = o.contiguous(), logs = lse.contiguous(), out = at::empty({P / C, N * D}, o.options());
  void *po = address(parts), *pl = address(logs), *pu = address(pages.used_P), *pm = address(out);
  launch("combine_parts", o, P / C * N, 64, {&po, &pl, &pu, &pm, &N, &D, &C, &P});
  return out;
}

at::Tensor paged(const at::Tensor& qkv, const PagedPlan& plan, const AttentionShape& shape, const PagedCache& cache) {
  return aten::paged_by({write_cache, combine_parts}, qkv, plan, shape, cache);
}

void logit_stats(const at::Tensor& logits, const at::Tensor& targets, float inv_temperature, at::Tensor& stats) {
  const int64_t V = logits.size(1), stride = logits.stride(0);
  TANDEM_CHECK(logits.stride(1) == 1 && targets.is_contiguous() && stats.is_contiguous(), "rows of logits");
  void *pl = address(logits), *pt = address(targets), *ps = address(stats);
  launch("logit_stats", stats, logits.size(0), kRowThreads, {&pl, &stride, &pt, &inv_temperature, &ps, &V});
}

at::Tensor logit_grad(at::Tensor& logits, const LogitGrad& in) {
  const int64_t R = logits.size(0), V = logits.size(1), stride = logits.stride(0);
  const auto column = [](const at::Tensor& t) { return t.defined() ? t.contiguous() : t; };
  const at::Tensor softmax = column(in.of.softmax_R3), targets = column(in.targets_R), d_logprobs = column(in.d_logprobs_R),
                   d_entropy = column(in.d_entropy_R), out = at::empty({R, V}, logits.options().dtype(in.dtype));
  void *pl = address(logits), *ps = address(softmax), *pt = address(targets), *pd = address(d_logprobs), *pe = address(d_entropy),
       *po = address(out);
  launch("logit_grad", out, R, kRowThreads, {&pl, &stride, &ps, &pt, &pd, &pe, &in.inv_temperature, &po, &V});
  return out;
}

bool filters(const DrawArgs& args) {
  return (args.top_k_D > 0).logical_or(args.top_p_D < 1).any().item<bool>();
}

at::Tensor draw(const at::Tensor& logits_SRV, const DrawArgs& args) {
  const int64_t D = args.rows_D.numel(), V = args.vocab_size, allowed = args.num_tokens;
  if (logits_SRV.size(0) > 1 || D == 0 || filters(args)) return aten::backend().logit.draw(logits_SRV, args);
  TANDEM_CHECK(allowed > 0 && allowed <= V && V <= logits_SRV.size(2) && V < 0x40000000, allowed, " of ", V, " tokens");
  const at::Tensor logits = logits_SRV[0];
  const at::Tensor host = at::stack({args.rows_D.to(at::kDouble), args.temperature_D, args.uniform_D});
  const at::Tensor numbers = host.to(logits.device(), /*non_blocking=*/true);
  at::Tensor words = at::empty({4, D}, logits.options());
  const int64_t stride = logits.stride(0);
  void *pl = address(logits), *pn = address(numbers), *pw = address(words);
  launch("draw", words, D, kDrawThreads, {&pl, &stride, &pn, &pw, &D, &V, &allowed});
  return words;
}

Backend own() {
  Backend b = aten::backend();
  b.name = "cuda";
  b.row.add_rms_norm = add_rms_norm;
  b.row.rms_norm_backward = rms_norm_backward;
  b.row.rope = rope;
  b.row.swiglu = swiglu;
  b.row.swiglu_backward = swiglu_backward;
  b.attention.paged = paged;
  b.logit.stats = logit_stats;
  b.logit.grad = logit_grad;
  b.logit.draw = draw;
  return b;
}

}  // namespace

const Backend* backend() {
  static const Backend one = own();
  return &one;
}

}  // namespace tandem::model::kernel::cuda
