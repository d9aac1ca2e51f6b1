// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "tandem/model/kernel/kernels.h"

namespace tandem::test {

/// Those that compute on this machine.
inline std::vector<const model::kernel::Backend*> backends() {
  return {&model::kernel::cpu::backend(), &model::kernel::aten::backend()};
}

/// Without measuring.
inline model::kernel::Kernels plain(const model::kernel::Backend& backend, c10::ScalarType dtype, bool parity = false) {
  if (parity) return {backend, dtype, true};
  return {backend, dtype, backend.product.plain_choice(dtype)};
}

/// All tokens attend.
inline std::shared_ptr<const model::kernel::PackedPlan> plan_of(const model::kernel::Kernels& kernels, const model::kernel::Trees& trees,
                                                                int64_t num_tokens) {
  return kernels.attention().plan_packed(trees, {{0, num_tokens}}, kernels.device());
}

}  // namespace tandem::test
