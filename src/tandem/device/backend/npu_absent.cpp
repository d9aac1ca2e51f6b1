// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/backend/absent_kind.h"

namespace tandem::device {
namespace {

struct AscendAbsent {
  static constexpr auto kName = "npu";
  static constexpr auto kType = at::kPrivateUse1;
  static constexpr auto kWhat = "this build has no Ascend backend", kExpected = "a build by scripts/build npu, or cpu";
};
constexpr Backend kAscendAbsent = absent_kind<AscendAbsent>();

}  // namespace

const Backend& npu::backend() { return kAscendAbsent; }

}  // namespace tandem::device
