// SPDX-License-Identifier: Apache-2.0
#pragma once
// UpdateKernels on this processor.

#include "tandem/model/kernel/update.h"

namespace tandem::model::kernel::cpu {

extern const UpdateKernels kUpdateKernels;

}  // namespace tandem::model::kernel::cpu
