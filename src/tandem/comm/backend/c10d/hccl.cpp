// SPDX-License-Identifier: Apache-2.0
// HCCL, as the torch-npu wheel carries it.
#include <torch_npu/csrc/core/npu/NPUFunctions.h>
#include <torch_npu/csrc/distributed/ProcessGroupHCCL.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/backend/c10d/library.h"

namespace tandem::comm {
namespace {

using c10d_npu::ProcessGroupHCCL;

int64_t whole_seconds(double seconds) { return static_cast<int64_t>(std::ceil(seconds)); }

c10::intrusive_ptr<::c10d::Backend> connect(const Place& place) {
  auto options = ProcessGroupHCCL::Options::create();
  options->timeout = std::chrono::seconds(whole_seconds(place.deadline_s));
  options->group_name = place.group;
  return c10::make_intrusive<ProcessGroupHCCL>(place.store, place.rank, place.size, options);
}

}  // namespace

std::string device_library_name() { return "hccl"; }

void set_environment(double deadline_s) {
  // Ours are the deadlines: the library's watchdog would end the process without a word of who is late.
  ::setenv("HCCL_ASYNC_ERROR_HANDLING", "0", 0);
  // The first operation of a group connects it, and waits for the peers so long, as far as CANN lets it.
  ::setenv("HCCL_CONNECT_TIMEOUT", std::to_string(std::clamp<int64_t>(whole_seconds(deadline_s), 120, 7200)).c_str(), 0);
}

Library device_library(int number) {
  const int devices = c10_npu::device_count();
  if (number >= devices)
    throw UserError("Ascend", join_text("this machine has no device ", number, ": there are ", devices),
                    "no more ranks than devices on a machine");
  const at::Device device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(number));
  // Its abort has an argument, and so is not the one of the base class.
  return {device_library_name(), device, connect, [](::c10d::Backend& backend) { static_cast<ProcessGroupHCCL&>(backend).abort(); },
          [device] { c10_npu::set_device(device.index()); }};
}

}  // namespace tandem::comm
