// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cpu/rows.h"

namespace tandem::model::kernel::cpu {

extern const Rows kRows_base;
#if defined(__x86_64__)
extern const Rows kRows_avx2;
extern const Rows kRows_avx512;
#endif

std::vector<const Rows*> all_rows() {
  std::vector<const Rows*> tables = {&kRows_base};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables.push_back(&kRows_avx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    tables.push_back(&kRows_avx512);
#endif
  return tables;
}

const Rows& rows() {
  static const Rows& best = *all_rows().back();
  return best;
}

}  // namespace tandem::model::kernel::cpu
