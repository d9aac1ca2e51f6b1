// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cpu/rows_isa.inc"

namespace tandem::model::kernel::cpu {

extern const Rows kRows_base;
const Rows kRows_base = {table<float>(), table<Half>(), float_table(), "base"};

}  // namespace tandem::model::kernel::cpu
