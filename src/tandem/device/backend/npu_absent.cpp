// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/backend/absent_kind.h"

namespace tandem::device {

const Backend& npu::backend() {
  static constexpr char kName[] = "npu", kMaker[] = "Ascend";
  static constexpr Backend kAbsent = absent_kind<kName, kMaker>(at::kPrivateUse1);
  return kAbsent;
}

}  // namespace tandem::device
