// SPDX-License-Identifier: Apache-2.0
#pragma once
// Products that each attention head does with a matrix of its own.

#include "tandem/model/op/function.h"

namespace tandem::model::op {

/// y[T, heads*N]: each head's slice of x[T, heads*K] times its own matrix. w: [heads, rows, columns], of which head h uses
/// rows [begin, begin + count): w_h^T if `transpose` (K = columns, N = count), else w_h (K = count, N = columns).
struct HeadSlice {
  int64_t heads, rows, begin, count;
  bool transpose;
};
at::Tensor head_linear(const Kernels& k, const at::Tensor& x, const Parameter& w, const HeadSlice& slice);

}  // namespace tandem::model::op
