// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/op/heads.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "tandem/model/op/product.h"
#include "tandem/model/op/step.h"

namespace tandem::model::op {
namespace {

at::Tensor columns_of(const at::Tensor& x, int64_t head, int64_t heads) {
  const int64_t width = x.size(1) / heads;
  return x.narrow(1, head * width, width);
}

Parameter matrix_of(const Parameter& w, const HeadSlice& s, int64_t head) { return rows_of(w, head * s.rows + s.begin, s.count); }

Gradients backward_of(const Kernels& k, const at::Tensor& d, const at::Tensor& x, const Parameter& weight, const HeadSlice& slice) {
  at::Tensor dx = at::empty_like(x);
  for (int64_t h = 0; h < slice.heads; ++h) {
    const at::Tensor dy = columns_of(d, h, slice.heads).contiguous(), x_h = columns_of(x, h, slice.heads).contiguous();
    at::Tensor dx_h = at::empty_like(x_h);
    if (slice.transpose) {
      add_weight_grad(k, weight, h * slice.rows + slice.begin, dy, x_h);
      input_grad(k, dx_h, dy, matrix_of(weight, slice, h));
    } else {
      add_weight_grad(k, weight, h * slice.rows + slice.begin, x_h, dy);
      forward(k, dx_h, dy, matrix_of(weight, slice, h));
    }
    columns_of(dx, h, slice.heads).copy_(dx_h);
  }
  return {dx};
}

}  // namespace

at::Tensor head_linear(const Kernels& k, const at::Tensor& x, const Parameter& w, const HeadSlice& slice) {
  const int64_t T = x.size(0), N = slice.transpose ? slice.count : w.value.size(1);
  at::Tensor out = at::empty({T, slice.heads * N}, x.options());
  for (int64_t h = 0; h < slice.heads; ++h) {
    const Parameter matrix = matrix_of(w, slice, h);
    at::Tensor y = at::empty({T, N}, x.options());
    forward(k, y, columns_of(plain(x), h, slice.heads).contiguous(), slice.transpose ? matrix : transposed(matrix));
    columns_of(out, h, slice.heads).copy_(y);
  }
  if (recording({x}))
    record({x}, {out}, [&k, w, slice, kept = x.detach()](const Gradients& d) { return backward_of(k, d[0], kept, w, slice); });
  return out;
}

}  // namespace tandem::model::op
