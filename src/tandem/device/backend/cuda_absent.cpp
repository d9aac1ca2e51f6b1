// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/backend/absent_kind.h"

namespace tandem::device {

const Backend& cuda::backend() {
  static constexpr char kName[] = "cuda", kMaker[] = "CUDA";
  static constexpr Backend kAbsent = absent_kind<kName, kMaker>(at::kCUDA);
  return kAbsent;
}

}  // namespace tandem::device
