// SPDX-License-Identifier: Apache-2.0
#pragma once
// bfloat16 products with fp32 results by libtorch's block kernels (oneDNN's batch-reduced product, at::native::cpublas::brgemm). They use
// the processor's bfloat16 or matrix instructions whoever made it. We bring one factor into the order they read, pairs of the inner
// dimension side by side, a block at a time.
//
// The bits of a result depend on the shapes alone, not on the number of threads.

#include <ATen/core/Tensor.h>

namespace tandem::model::kernel::cpu {

/// Whether they multiply on this processor, as a small product shows.
bool brgemm_available();
/// Whether they serve a product of that inner dimension: an even one.
bool brgemm_serves(int64_t K);

/// out[M,N] = x[M,K] w[N,K]^T; x and w are bfloat16, out is fp32, rows are contiguous. K is even.
void brgemm_forward(at::Tensor& out_MN, const at::Tensor& x_MK, const at::Tensor& w_NK);
/// w[N,K] in the order that brgemm_forward brings it into, [blocks][K/2][columns of a block][2]; what is over in the last block is 0.
at::Tensor brgemm_pack(const at::Tensor& w_NK);
/// The product with such a copy of w, whose bits are those of brgemm_forward.
void brgemm_forward_packed(at::Tensor& out_MN, const at::Tensor& x_MK, const at::Tensor& packed_w);
/// dw[N,K] += dy[M,N]^T x[M,K]; dy and x are bfloat16, dw is fp32, rows are contiguous.
void brgemm_weight_grad(at::Tensor& dw_NK, const at::Tensor& dy_MN, const at::Tensor& x_MK);

}  // namespace tandem::model::kernel::cpu
