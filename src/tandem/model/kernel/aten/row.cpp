// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

#include "tandem/model/kernel/aten/aten.h"

namespace tandem::model::kernel::aten {
namespace {

// Which ids are rows of the table, and rows for all of them.
std::pair<at::Tensor, at::Tensor> rows_of(const at::Tensor& ids, int64_t first_row, int64_t num_rows) {
  const at::Tensor row = ids - first_row;
  return {row.ge(0).logical_and(row.lt(num_rows)), row.clamp(0, num_rows - 1)};
}

at::Tensor embed(const at::Tensor& table, const at::Tensor& ids, int64_t first_row) {
  const auto [held, row] = rows_of(ids, first_row, table.size(0));
  return table.index_select(0, row).masked_fill_(held.logical_not().unsqueeze(1), 0);
}

// Of several rows with one id the order is that of tokens: by index_put_ on devices, where index_add_ takes any order.
void embed_backward(at::Tensor& grad, const at::Tensor& d, const at::Tensor& ids, int64_t first_row) {
  if (ids.numel() == 0) return;
  const auto [held, row] = rows_of(ids, first_row, grad.size(0));
  const at::Tensor added = in_float(d) * held.unsqueeze(1);
  // Rows are added in one order: on CUDA by the one that sorts them, elsewhere by the one that takes them as they come.
  if (grad.is_cuda()) grad.index_put_({row}, added, /*accumulate=*/true);
  else grad.index_add_(0, row, added);
}

at::Tensor rstd_of(const at::Tensor& x_float, double eps) { return at::rsqrt(x_float.square().mean(-1) + eps); }

Normed add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight, double eps) {
  const at::Tensor sum = delta.defined() ? x + delta : x, values = in_float(sum), rstd = rstd_of(values, eps);
  return {sum, (values * rstd.unsqueeze(-1) * in_float(weight)).to(x.scalar_type()), rstd};
}

// The gradient through a norm over the last dimension, in fp32, and what the weight gets of each row.
struct NormBackward {
  at::Tensor dx, of_weight;
};
NormBackward norm_backward(const at::Tensor& d, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd) {
  const at::Tensor d_float = in_float(d), r = rstd.unsqueeze(-1), normed = in_float(x) * r, inner = d_float * in_float(weight);
  return {(inner - normed * (inner * normed).mean(-1, /*keepdim=*/true)) * r, d_float * normed};
}

at::Tensor rms_norm_backward(const NormGrad& in, at::Tensor& weight_grad) {
  const auto [d, of_weight] = norm_backward(in.d_normed_TH, in.x_TH, in.weight_H, in.rstd_T);
  if (weight_grad.defined()) weight_grad.add_(of_weight.sum(0));
  return (in.d_sum_TH.defined() ? d + in_float(in.d_sum_TH) : d).to(in.x_TH.scalar_type());
}

// Rows of all heads as [T, heads, D]: queries and keys, and the values.
struct Heads {
  at::Tensor normed, values;
  Heads(const at::Tensor& qkv, const AttentionShape& s) {
    const at::Tensor all = qkv.view({qkv.size(0), s.num_heads + 2 * s.num_kv_heads, s.head_dim});
    normed = all.narrow(1, 0, s.num_heads + s.num_kv_heads);
    values = all.narrow(1, s.num_heads + s.num_kv_heads, s.num_kv_heads);
  }
};

// The weight of each query and key head, [heads, D].
at::Tensor head_weights(const at::Tensor& norms, const AttentionShape& s) {
  const int64_t D = s.head_dim;
  return at::cat({norms.narrow(0, 0, D).expand({s.num_heads, D}), norms.narrow(0, D, D).expand({s.num_kv_heads, D})});
}

NormedHeads head_norm(const at::Tensor& qkv, const at::Tensor& norms, double eps, const AttentionShape& shape) {
  const at::Tensor out = at::empty_like(qkv), x = in_float(Heads(qkv, shape).normed), rstd = rstd_of(x, eps);
  const Heads to(out, shape);
  to.normed.copy_(x * rstd.unsqueeze(-1) * in_float(head_weights(norms, shape)));
  to.values.copy_(Heads(qkv, shape).values);
  return {out, rstd};
}

at::Tensor head_norm_backward(const HeadNormGrad& in, const AttentionShape& shape, at::Tensor& norms_grad) {
  const at::Tensor dx = at::empty_like(in.qkv_TW);
  const Heads d(in.d_TW, shape), to(dx, shape);
  const auto [d_normed, of_weight] = norm_backward(d.normed, Heads(in.qkv_TW, shape).normed, head_weights(in.norms_2D, shape), in.rstd_TN);
  to.normed.copy_(d_normed);
  to.values.copy_(d.values);
  if (norms_grad.defined()) {
    const int64_t D = shape.head_dim;
    norms_grad.narrow(0, 0, D).add_(of_weight.narrow(1, 0, shape.num_heads).sum(at::IntArrayRef{0, 1}));
    norms_grad.narrow(0, D, D).add_(of_weight.narrow(1, shape.num_heads, shape.num_kv_heads).sum(at::IntArrayRef{0, 1}));
  }
  return dx;
}

at::Tensor rope(const at::Tensor& qkv, const at::Tensor& bias, const Rotation& rotation, bool forward) {
  const AttentionShape& shape = rotation.shape;
  const int64_t half = shape.head_dim / 2;
  const at::Tensor in = bias.defined() ? in_float(qkv) + in_float(bias) : in_float(qkv), out = at::empty_like(qkv);
  const at::Tensor angles = rotation.cos_sin_PD.index_select(0, rotation.positions_T).unsqueeze(1), cos = angles.narrow(2, 0, half);
  const at::Tensor sin = forward ? angles.narrow(2, half, half) : -angles.narrow(2, half, half);
  const Heads from(in, shape), to(out, shape);
  const at::Tensor a = from.normed.narrow(2, 0, half), b = from.normed.narrow(2, half, half);
  to.normed.narrow(2, 0, half).copy_(a * cos - b * sin);
  to.normed.narrow(2, half, half).copy_(b * cos + a * sin);
  to.values.copy_(from.values);
  return out;
}

void add_rows(at::Tensor& sums, const at::Tensor& d) { sums.add_(in_float(d).sum(0)); }

at::Tensor swiglu(const at::Tensor& gate_up) {
  const int64_t F = gate_up.size(1) / 2;
  const at::Tensor gate = in_float(gate_up.narrow(1, 0, F));
  return (gate * logistic(gate) * in_float(gate_up.narrow(1, F, F))).to(gate_up.scalar_type());
}

at::Tensor swiglu_backward(const at::Tensor& gate_up, const at::Tensor& d) {
  const int64_t F = d.size(1);
  const at::Tensor gate = in_float(gate_up.narrow(1, 0, F)), up = in_float(gate_up.narrow(1, F, F)), s = logistic(gate);
  const at::Tensor through = in_float(d) * s, out = at::empty_like(gate_up);
  out.narrow(1, 0, F).copy_(through * up * (1 + gate * (1 - s)));
  out.narrow(1, F, F).copy_(through * gate);
  return out;
}

at::Tensor gather(const at::Tensor& x, const at::Tensor& rows) { return x.index_select(0, rows); }

at::Tensor scatter(const at::Tensor& x, const at::Tensor& rows, int64_t num_rows) {
  return at::zeros({num_rows, x.size(1)}, x.options()).index_copy_(0, rows, x);
}

at::Tensor scale(const at::Tensor& x, const at::Tensor& factors) { return (in_float(x) * factors.unsqueeze(1)).to(x.scalar_type()); }

at::Tensor dot(const at::Tensor& a, const at::Tensor& b) { return (in_float(a) * in_float(b)).sum(1); }

}  // namespace

const RowKernels kRowKernels = {embed,    embed_backward, add_rms_norm,    rms_norm_backward, head_norm, head_norm_backward, rope,
                                add_rows, swiglu,         swiglu_backward, gather,            scatter,   scale,              dot};

}  // namespace tandem::model::kernel::aten
