// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/backend/absent_kind.h"

namespace tandem::device {
namespace {

struct AscendAbsent {
  static constexpr auto kName = "npu";
  static constexpr auto kType = at::kPrivateUse1;
  static constexpr auto kWhat = "this build has no Ascend backend";
  static constexpr auto kExpected = "scripts/setup and scripts/build on the machine with the device, or cpu";
};
constexpr Backend kAscendAbsent = absent_kind<AscendAbsent>();

}  // namespace

const Backend& npu::backend() { return kAscendAbsent; }

}  // namespace tandem::device
