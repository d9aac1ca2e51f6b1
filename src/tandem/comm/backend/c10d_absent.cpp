// SPDX-License-Identifier: Apache-2.0
// Takes the place of c10d/ when neither TANDEM_CUDA nor TANDEM_NPU is on.
#include "tandem/base/error.h"
#include "tandem/comm/backend/c10d/device_group.h"
#include "tandem/comm/launch.h"

namespace tandem::comm {

std::string c10d_library() { return ""; }

std::unique_ptr<DeviceGroups> carry_by_library(Group&, at::Device, double) { return nullptr; }

void prepare_device_groups(double) {}

void run_c10d(double, const RankBody&) {
  throw UserError("c10d", "this program was built without it",
                  "cmake --preset cuda (TANDEM_CUDA=ON) or cmake --preset npu (TANDEM_NPU=ON)");
}

}  // namespace tandem::comm
