// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/backend/absent_kind.h"

namespace tandem::device {
namespace {

struct CudaAbsent {
  static constexpr auto kName = "cuda";
  static constexpr auto kType = at::kCUDA;
  static constexpr auto kWhat = "this build has no CUDA backend";
  static constexpr auto kExpected = "scripts/setup and scripts/build on the machine with the device, or cpu";
};
constexpr Backend kCudaAbsent = absent_kind<CudaAbsent>();

}  // namespace

const Backend& cuda::backend() { return kCudaAbsent; }

}  // namespace tandem::device
