// SPDX-License-Identifier: Apache-2.0
#pragma once
// ExpertKernels on this processor.

#include "tandem/model/kernel/expert.h"

namespace tandem::model::kernel::cpu {

extern const ExpertKernels kExpertKernels;

}  // namespace tandem::model::kernel::cpu
