// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cpu/rows_isa.inc"

namespace tandem::model::kernel::cpu {

extern const Rows kRows_avx2;
const Rows kRows_avx2 = {table<float>(), table<Half>(), float_table(), "avx2"};

}  // namespace tandem::model::kernel::cpu
