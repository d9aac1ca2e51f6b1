// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the kernels of this folder go over the rows of a tensor.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>

#include "tandem/model/kernel/cpu/rows.h"

namespace tandem::model::kernel::cpu {

template <class T>
T* pointer(const at::Tensor& t) { return t.defined() ? static_cast<T*>(t.data_ptr()) : nullptr; }

/// Calls run.template operator()<T>() with the element type of `t`.
template <class Run>
void by_dtype(const at::Tensor& t, const Run& run) {
  if (t.scalar_type() == at::kFloat) run(float{});
  else run(Half{});
}

/// run(begin, end) on several threads, if that many elements are worth it.
inline void for_rows(int64_t rows, int64_t row_elements, const std::function<void(int64_t, int64_t)>& run) {
  at::parallel_for(0, rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(row_elements, 1)), run);
}

}  // namespace tandem::model::kernel::cpu
