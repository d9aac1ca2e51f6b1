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

/// Calls run with an element of the type of `t`.
template <class Run>
void by_dtype(const at::Tensor& t, const Run& run) {
  if (t.scalar_type() == at::kFloat) run(float{});
  else run(Half{});
}

/// run(begin, end) on several threads, if that many elements are worth it.
inline void for_rows(int64_t rows, int64_t row_elements, const std::function<void(int64_t, int64_t)>& run) {
  at::parallel_for(0, rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(row_elements, 1)), run);
}

/// run(element, begin, end) so, for the rows of `t`, with an element of its type.
template <class Run>
void for_rows_of(const at::Tensor& t, int64_t row_elements, const Run& run) {
  for_rows(t.size(0), row_elements, [&](int64_t begin, int64_t end) { by_dtype(t, [&](auto element) { run(element, begin, end); }); });
}

}  // namespace tandem::model::kernel::cpu
