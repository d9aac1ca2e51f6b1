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

int64_t whole_seconds(double seconds) { return static_cast<int64_t>(std::ceil(seconds)); }

c10::intrusive_ptr<::c10d::Backend> connect(const Place& place) {
  auto options = ::c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::seconds(whole_seconds(place.deadline_s));
  options->config.blocking = 0;  // else a peer that does not come keeps this rank inside NCCL for ever
  options->group_name = place.group;
  return c10::make_intrusive<::c10d::ProcessGroupNCCL>(place.store, place.rank, place.size, options);
}

}  // namespace

std::string device_library_name() { return "nccl"; }

void set_environment(double deadline_s) {
  // As device/backend/cuda/cuda.cpp wants it, while there is one thread.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  // Ours are the deadlines: the library's watchdog would end the process without a word of who is late.
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 0);
  // Between ranks that are threads, NCCL would read tensors of a peer in place. It does not between processes, whatever this says.
  ::setenv("NCCL_P2P_DIRECT_DISABLE", "1", 0);
  // The first operation of a group connects it, and waits for the peers so long.
  ::setenv("TORCH_NCCL_NONBLOCKING_TIMEOUT", std::to_string(whole_seconds(deadline_s)).c_str(), 0);
}

Library device_library(int number) {
  const int devices = c10::cuda::device_count();
  if (number >= devices)
    throw UserError("CUDA", join_text("this machine has no device ", number, ": there are ", devices),
                    "no more ranks than devices on a machine");
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(number));
  return {device_library_name(), device, connect, [](::c10d::Backend& backend) { backend.abort(); },
          [device] { c10::cuda::set_device(device.index()); }};
}

}  // namespace tandem::comm
