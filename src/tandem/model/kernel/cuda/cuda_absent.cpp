// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/backend.h"

namespace tandem::model::kernel {

const Backend* cuda::backend() { return nullptr; }

}  // namespace tandem::model::kernel
