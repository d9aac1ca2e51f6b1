// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/op/product.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace tandem::model::op {
namespace {

constexpr int64_t kFloatRows = 16 * kernel::kParityRows;  // of fp32 at a time

}  // namespace

void forward(const Kernels& k, at::Tensor& out, const at::Tensor& x, const Parameter& w) {
  if (!w.a_RK.defined()) return k.forward(out, x, w.value);
  at::Tensor sum_room = out.scalar_type() == at::kFloat ? at::Tensor() : at::empty({std::min(kFloatRows, x.size(0)), out.size(1)}, k.options(at::kFloat));
  for (int64_t begin = 0; begin < x.size(0); begin += kFloatRows) {
    const int64_t rows = std::min(kFloatRows, x.size(0) - begin);
    const at::Tensor some = x.narrow(0, begin, rows);
    at::Tensor to = out.narrow(0, begin, rows), sum = sum_room.defined() ? sum_room.narrow(0, 0, rows) : to;
    at::Tensor low = at::empty({rows, w.a_RK.size(0)}, x.options()), part = at::empty({rows, out.size(1)}, k.options(at::kFloat));
    k.forward_float(sum, some, w.value);
    k.forward(low, some, w.a_RK);
    k.forward_float(part, low, w.b_NR);
    sum.add_(part);
    if (sum_room.defined()) to.copy_(sum);
  }
}

// One product with the adapters' part as more columns of dy: so the library's sum is fp32 to its end.
void input_grad(const Kernels& k, at::Tensor& dx, const at::Tensor& dy, const Parameter& w) {
  if (!w.a_RK.defined()) return k.input_grad(dx, dy, w.value);
  constexpr int64_t kChunkRows = 8 * kFloatRows;
  const at::Tensor both = at::cat({w.value, w.a_RK});
  for (int64_t begin = 0; begin < dy.size(0); begin += kChunkRows) {
    const at::Tensor some = dy.narrow(0, begin, std::min(kChunkRows, dy.size(0) - begin));
    at::Tensor low = at::empty({some.size(0), w.b_NR.size(1)}, dy.options()), to = dx.narrow(0, begin, some.size(0));
    k.input_grad(low, some, w.b_NR);
    k.input_grad(to, at::cat({some, low}, 1), both);
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
  w.packed = k.product().pack(k.numerics(), w.a_RK.defined() ? at::cat({w.value, w.b_NR}, 1) : w.value);
  if (!w.packed.defined() || !w.a_RK.defined()) return w.packed.num_bytes;
  w.packed_a = k.product().pack(k.numerics(), w.a_RK);
  return w.packed.num_bytes + w.packed_a.num_bytes;
}

at::Tensor packed_product(const Kernels& k, const at::Tensor& x, const Parameter& w) {
  if (!w.a_RK.defined()) return k.product().packed_product(x, w.packed);
  return k.product().packed_product(at::cat({x, k.product().packed_product(x, w.packed_a)}, 1), w.packed);
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
