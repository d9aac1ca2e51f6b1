// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/rows.h"

namespace tandem::model::kernel {

extern const Rows kRows_base;
#if defined(__x86_64__)
extern const Rows kRows_avx2;
extern const Rows kRows_avx512;
#endif

const Rows& rows() {
#if defined(__x86_64__)
  static const Rows& best = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                                    __builtin_cpu_supports("avx512dq")
                                ? kRows_avx512
                            : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? kRows_avx2
                                                                                              : kRows_base;
  return best;
#else
  return kRows_base;
#endif
}

}  // namespace tandem::model::kernel
