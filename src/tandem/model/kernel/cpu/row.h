// SPDX-License-Identifier: Apache-2.0
#pragma once
// RowKernels over the row kernels of this processor.

#include "tandem/model/kernel/row.h"

namespace tandem::model::kernel::cpu {

extern const RowKernels kRowKernels;

}  // namespace tandem::model::kernel::cpu
