// SPDX-License-Identifier: Apache-2.0
#pragma once
// The products of experts with their rows, as ProductKernels has them.

#include "tandem/model/kernel/product.h"

namespace tandem::model::kernel::cpu {

at::Tensor grouped_forward(const Numerics& n, const at::Tensor& x_SK, const at::Tensor& w_ENK, const ExpertRows& rows);
at::Tensor grouped_input_grad(const Numerics& n, const at::Tensor& dy_SN, const at::Tensor& w_ENK, const ExpertRows& rows);
void grouped_weight_grad(const Numerics& n, at::Tensor& dw_ENK, const at::Tensor& dy_SN, const at::Tensor& x_SK, const ExpertRows& rows);

}  // namespace tandem::model::kernel::cpu
