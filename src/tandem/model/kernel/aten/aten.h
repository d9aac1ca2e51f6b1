// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tables of this folder: every function by libtorch's operators alone, on the device of its tensors. Sums are fp32, as everywhere.

#include "tandem/model/kernel/aten/flash.h"
#include "tandem/model/kernel/backend.h"

namespace tandem::model::kernel::aten {

/// What paged attention does beside the attention itself, for a device that has kernels of its own for it.
struct PagedSteps {
  void (*write_cache)(const at::Tensor& qkv_TW, const at::Tensor& tables_TB, const at::Tensor& positions_T, const AttentionShape& shape,
                      const PagedCache& cache);
  CombineParts combine;
};
/// As AttentionKernels::paged.
at::Tensor paged_by(const PagedSteps& steps, const at::Tensor& qkv_TW, const PagedPlan& plan, const AttentionShape& shape,
                    const PagedCache& cache);

/// Rows of experts by one operator of libtorch: x[S,K] to y[S,N], or dy[S,N] to dx[S,K]. w as ProductKernels::grouped_forward has it.
at::Tensor grouped_by_library(const at::Tensor& rows_SX, const at::Tensor& w, const ExpertRows& rows, bool forward);

extern const ProductKernels kProductKernels;
extern const RowKernels kRowKernels;
extern const AttentionKernels kAttentionKernels;
extern const LogitKernels kLogitKernels;
extern const ExpertKernels kExpertKernels;
extern const UpdateKernels kUpdateKernels;

/// The same values in fp32; itself, if it is.
at::Tensor in_float(const at::Tensor& t);
/// By exp, whose bits do not depend on where an element stands: libtorch's own sigmoid computes the last few of a tensor another way.
at::Tensor logistic(const at::Tensor& x);
/// The host's values where `like` is.
at::Tensor moved(const at::Tensor& host, const at::Tensor& like);

}  // namespace tandem::model::kernel::aten
