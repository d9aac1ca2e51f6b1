// SPDX-License-Identifier: Apache-2.0
// NCCL, as the CUDA wheel of torch carries it.
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <chrono>
#include <cmath>
#include <cstdlib>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/backend/c10d/library.h"

namespace tandem::comm {
namespace {

c10::intrusive_ptr<::c10d::Backend> connect(const Place& place) {
  // Ours are the deadlines: the library's watchdog would end the process without a word of who is late.
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 0);
  // The first operation of a group connects it, and waits for the peers so long.
  const auto whole_s = static_cast<int64_t>(std::ceil(place.deadline_s));
  ::setenv("TORCH_NCCL_NONBLOCKING_TIMEOUT", std::to_string(whole_s).c_str(), 0);
  auto options = ::c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::seconds(whole_s);
  options->config.blocking = 0;
  options->group_name = place.group;
  return c10::make_intrusive<::c10d::ProcessGroupNCCL>(place.store, place.rank, place.size, options);
}

}  // namespace

std::string device_library_name() { return "nccl"; }

Library device_library(int local_rank) {
  const int devices = c10::cuda::device_count();
  if (local_rank >= devices)
    throw UserError("CUDA", join_text("rank ", local_rank, " of this machine has no device: there are ", devices),
                    "no more ranks than devices on a machine");
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank));
  return {device_library_name(), device, connect, [](::c10d::Backend& backend) { backend.abort(); },
          [device] { c10::cuda::set_device(device.index()); }};
}

}  // namespace tandem::comm
