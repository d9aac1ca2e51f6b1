// SPDX-License-Identifier: Apache-2.0
#pragma once
// Products with a parameter and its adapters, as the steps of function.h use them.

#include "tandem/model/op/function.h"

namespace tandem::model::op {

/// x w^T by the packed copies of pack().
at::Tensor packed_product(const Kernels& k, const at::Tensor& x_MK, const Parameter& w_NK);
/// As forward() of a matrix with adapters, with the two parts computed apart and added in fp32: what a device runs for few rows, where no
/// copy of the matrix is worth its time.
void forward_in_parts(const Kernels& k, at::Tensor& out_MN, const at::Tensor& x_MK, const Parameter& w_NK);
/// Rows [first, first + count) of w alone, for products: without gradients.
Parameter rows_of(const Parameter& w_NK, int64_t first, int64_t count);
/// w^T, for products.
Parameter transposed(const Parameter& w_NK);

}  // namespace tandem::model::op
