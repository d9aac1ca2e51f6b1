// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/op/product.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace tandem::model::op {
namespace {

constexpr int64_t kCopyRows = 512;    // above, a copy of the weight on a device costs less than sums that are added apart
constexpr int64_t kMostRows = 4096;   // of activations that are copied at a time

at::Tensor beside(const at::Tensor& a, const at::Tensor& b) { return at::cat({a, b}, 1); }

}  // namespace

void forward_in_parts(const Kernels& k, at::Tensor& out, const at::Tensor& x, const Parameter& w) {
  at::Tensor sum = out.scalar_type() == at::kFloat ? out : at::empty(out.sizes(), k.options(at::kFloat));
  at::Tensor low = at::empty({x.size(0), w.a_RK.size(0)}, x.options()), part = at::empty(out.sizes(), k.options(at::kFloat));
  k.forward_float(sum, x, w.value);
  k.forward(low, x, w.a_RK);
  k.forward_float(part, low, w.b_NR);
  sum.add_(part);
  if (!sum.is_same(out)) out.copy_(sum);
}

// One product of [x | x a^T] with [W0 | b], as packed_product has it: the library's sum is fp32 to its end, and with adapters of zeros its
// bits are mostly those of W0 alone.
void forward(const Kernels& k, at::Tensor& out, const at::Tensor& x, const Parameter& w) {
  if (!w.a_RK.defined()) return k.forward(out, x, w.value);
  if (x.is_cuda() && x.size(0) <= kCopyRows) return forward_in_parts(k, out, x, w);
  const at::Tensor both = beside(w.value, w.b_NR);
  for (int64_t begin = 0; begin < x.size(0); begin += kMostRows) {
    const at::Tensor some = x.narrow(0, begin, std::min(kMostRows, x.size(0) - begin));
    at::Tensor low = at::empty({some.size(0), w.a_RK.size(0)}, x.options()), to = out.narrow(0, begin, some.size(0));
    k.forward(low, some, w.a_RK);
    k.forward(to, beside(some, low), both);
  }
}

// The same for dy: [dy | dy b] with W0 above a.
void input_grad(const Kernels& k, at::Tensor& dx, const at::Tensor& dy, const Parameter& w) {
  if (!w.a_RK.defined()) return k.input_grad(dx, dy, w.value);
  const at::Tensor both = at::cat({w.value, w.a_RK});
  for (int64_t begin = 0; begin < dy.size(0); begin += kMostRows) {
    const at::Tensor some = dy.narrow(0, begin, std::min(kMostRows, dy.size(0) - begin));
    at::Tensor low = at::empty({some.size(0), w.b_NR.size(1)}, dy.options()), to = dx.narrow(0, begin, some.size(0));
    k.input_grad(low, some, w.b_NR);
    k.input_grad(to, beside(some, low), both);
  }
}

void add_weight_grad(const Kernels& k, const Parameter& w, int64_t first_row, const at::Tensor& dy, const at::Tensor& x) {
  if (w.grad.defined()) {
    at::Tensor grad = w.grad.narrow(0, first_row, dy.size(1));
    k.weight_grad(grad, dy, x);
  }
  if (w.adapters.empty()) return;
  at::Tensor to_a = at::empty({dy.size(0), w.a_RK.size(0)}, dy.options()), low = at::empty_like(to_a);
  k.input_grad(to_a, dy, w.b_NR.narrow(0, first_row, dy.size(1)));  // with the scale in b
  k.forward(low, x, w.a_RK);
  int64_t column = 0;
  for (const Adapter& adapter : w.adapters) {
    const int64_t rank = adapter.a_rK.size(0), mine = std::exchange(column, column + rank);
    const int64_t begin = std::max(adapter.first_row, first_row);
    const int64_t rows = std::min(adapter.first_row + adapter.b_Nr.size(0), first_row + dy.size(1)) - begin;
    if (rows <= 0) continue;
    at::Tensor a_grad = adapter.a_grad, b_grad = adapter.b_grad.narrow(0, begin - adapter.first_row, rows);
    k.weight_grad(a_grad, to_a.narrow(1, mine, rank).contiguous(), x);
    k.weight_grad(b_grad, dy.narrow(1, begin - first_row, rows).contiguous(), low.narrow(1, mine, rank).mul(adapter.scale));
  }
}

int64_t pack(const Kernels& k, Parameter& w) {
  at::NoGradGuard off;
  w.packed = k.product().pack(k.numerics(), w.a_RK.defined() ? beside(w.value, w.b_NR) : w.value);
  if (!w.packed.defined() || !w.a_RK.defined()) return w.packed.num_bytes;
  w.packed_a = k.product().pack(k.numerics(), w.a_RK);
  return w.packed.num_bytes + w.packed_a.num_bytes;
}

at::Tensor packed_product(const Kernels& k, const at::Tensor& x, const Parameter& w) {
  if (!w.a_RK.defined()) return k.product().packed_product(x, w.packed);
  return k.product().packed_product(beside(x, k.product().packed_product(x, w.packed_a)), w.packed);
}

Parameter rows_of(const Parameter& w, int64_t first, int64_t count) {
  Parameter part;
  part.value = w.value.narrow(0, first, count);
  if (w.a_RK.defined()) part.a_RK = w.a_RK, part.b_NR = w.b_NR.narrow(0, first, count);
  return part;
}

Parameter transposed(const Parameter& w) {
  Parameter turned;
  turned.value = w.value.t().contiguous();
  if (w.a_RK.defined()) turned.a_RK = w.b_NR.t().contiguous(), turned.b_NR = w.a_RK.t().contiguous();
  return turned;
}

}  // namespace tandem::model::op
