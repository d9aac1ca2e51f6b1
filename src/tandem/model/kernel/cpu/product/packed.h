// SPDX-License-Identifier: Apache-2.0
#pragma once
// Weights in the order that a product reads them. Decoding few rows is bound by reading weights: repacking them in every
// product would cost as much again, and a kernel that asks for them early runs at the memory's speed or the processor's,
// whichever is lower. A packed copy belongs to one version of the weights and goes with it.
//
// float32 goes through our own kernel (panel_product in rows.h), whose rows have the same bits in any company; bfloat16
// through oneDNN's, for the matrix units.

#include <ATen/core/Tensor.h>

#include "tandem/model/kernel/product.h"

namespace tandem::model::kernel::cpu {

/// As ProductKernels has them. In float32 the data is [panels][K][panel_columns], the last panel filled up with zeros; in bfloat16 opaque,
/// or of a head brgemm_pack's. None where this libtorch cannot pack w's dtype, and of a bfloat16 head whose logits are not brgemm.h's.
PackedWeight pack_weight(const Numerics& n, const at::Tensor& w_NK);
PackedWeight pack_head(const Numerics& n, const at::Tensor& w_NK);
at::Tensor packed_product(const at::Tensor& x_MK, const PackedWeight& w);

}  // namespace tandem::model::kernel::cpu
