// SPDX-License-Identifier: Apache-2.0
#pragma once
// Weights in the order that oneDNN's kernels read them: decoding few rows is bound by reading weights, and repacking them
// in every product would cost as much again. A packed copy belongs to one version of the weights and goes with it.

#include <ATen/core/Tensor.h>

#include <optional>

namespace tandem::model::kernel {

/// Rows up to which a packed product is used.
inline constexpr int64_t kPackedRows = 256;

/// True if this libtorch can pack weights.
bool packing_available();
/// A packed copy of w[N,K], an opaque tensor. Requires packing_available().
at::Tensor pack_weight(const at::Tensor& w_NK);
/// Bytes of a packed copy of `w`.
int64_t packed_bytes(const at::Tensor& w_NK);
/// x w^T with a packed w; the result has x's dtype.
at::Tensor packed_product(const at::Tensor& x_MK, const at::Tensor& packed);

}  // namespace tandem::model::kernel
