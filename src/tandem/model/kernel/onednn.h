// SPDX-License-Identifier: Apache-2.0
#pragma once
// Operators of oneDNN that libtorch registers and no header of it declares.

#include <ATen/core/Tensor.h>

namespace tandem::model::kernel {

/// Whether libtorch has both for tensors of that dtype on this processor; asked once.
bool onednn_multiplies(c10::ScalarType dtype);
/// x w^T for x[R,K] and w[N,K], which may be packed.
at::Tensor onednn_linear(const at::Tensor& x, const at::Tensor& w);
/// The same into out[R,N]: one operator that writes in place, which a device on the host queues, and captures, without memory of its own.
void onednn_linear_out(at::Tensor& out, const at::Tensor& x, const at::Tensor& w);
/// A copy of w[N,K] in the order that onednn_linear reads.
at::Tensor onednn_pack(const at::Tensor& w);

}  // namespace tandem::model::kernel
