// SPDX-License-Identifier: Apache-2.0
#pragma once
// Weights in the order that a product reads them. Decoding few rows is bound by reading weights: repacking them in every
// product would cost as much again, and a kernel that asks for them early runs at the memory's speed or the processor's,
// whichever is lower. A packed copy belongs to one version of the weights and goes with it.
//
// float32 goes through our own kernel (panel_product in rows.h), whose rows have the same bits in any company; bfloat16
// through oneDNN's, for the matrix units.

#include <ATen/core/Tensor.h>

#include "tandem/model/kernel/gemm.h"

namespace tandem::model::kernel {

struct PackedWeight {
  at::Tensor data;    ///< float32: [panels][K][panel_columns], the last panel filled up with zeros; bfloat16: opaque, or brgemm_pack's
  int64_t N = 0, K = 0;
  bool in_blocks = false;  ///< brgemm_pack's, whose products are fp32
  bool defined() const { return N > 0; }
  int64_t bytes() const;
  /// True if the packed product is the fastest for `rows` rows.
  bool serves(int64_t rows) const;
};

/// A packed copy of w[N,K], contiguous; nothing where this libtorch cannot pack w's dtype.
PackedWeight pack_weight(const at::Tensor& w_NK);
/// The same of a head, whose products are fp32; nothing in bfloat16 where logits are not brgemm.h's.
PackedWeight pack_head(const at::Tensor& w_NK, Logits logits);
/// x w^T, with x's dtype, or in fp32 for a head; x is contiguous.
at::Tensor packed_product(const at::Tensor& x_MK, const PackedWeight& w);

}  // namespace tandem::model::kernel
