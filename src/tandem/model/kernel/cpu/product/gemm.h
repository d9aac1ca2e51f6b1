// SPDX-License-Identifier: Apache-2.0
#pragma once
// Matrix products by several libraries. Which library runs each kind is measured at start, not guessed from the vendor's name; in parity
// mode it is fixed, and products run in chunks of kParityRows rows, so that a row's bits do not depend on its company. The library decides
// the order of a sum and its speed, never what is rounded.
//
// M rows (tokens), K input features, N output features.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tandem/model/kernel/cpu/rows.h"
#include "tandem/model/kernel/product.h"

namespace tandem::model::kernel::cpu {

/// In float32, logits have no way of their own, and oneDNN serves only the processors that libtorch takes it for. In bfloat16, forward and
/// input gradient come from oneDNN. Weight gradient and logits may come from a BLAS, if libtorch has one for bfloat16, or from brgemm.h,
/// if the processor has its instructions: oneDNN would round its result, so it gets fp32 copies of both factors, or the BLAS does where it
/// has no fp32 product.
bool can_compute(const GemmChoice& choice, c10::ScalarType dtype);
GemmChoice plain_choice(c10::ScalarType dtype);
GemmChoice measured_choice(c10::ScalarType dtype);
std::string choices(c10::ScalarType dtype);

/// As ProductKernels has them.
void forward(const Numerics& n, at::Tensor& out_MN, const at::Tensor& x_MK, const at::Tensor& w_NK);
void forward_float(const Numerics& n, at::Tensor& out_MN, const at::Tensor& x_MK, const at::Tensor& w_NK);
void input_grad(const Numerics& n, at::Tensor& dx_MK, const at::Tensor& dy_MN, const at::Tensor& w_NK);
void weight_grad(const Numerics& n, at::Tensor& dw_NK, const at::Tensor& dy_MN, const at::Tensor& x_MK);

/// One row-major product for the inside of attention, single-threaded when called from a parallel region:
/// c[m,n] = alpha * op(a) op(b) + beta * c, fp32 result. Half operands need half_product_available().
struct Product {
  bool transpose_a, transpose_b;
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  float alpha = 1, beta = 0;
};
void product(const Product& p, const float* a, const float* b, float* c);
void product(const Product& p, const Half* a, const Half* b, float* c);
bool half_product_available();

}  // namespace tandem::model::kernel::cpu
