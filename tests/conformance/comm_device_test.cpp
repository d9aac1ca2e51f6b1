// SPDX-License-Identifier: Apache-2.0
// One rank with a device: scripts/mpi -n N comm_device_test [beside]. Of ranks that c10d brought to life, or, beside, of ranks of MPI
// whose tensors it carries. Exit code 0 if all is right.
#include <iostream>
#include <string_view>

#include "device_suite.h"
#include "tandem/base/error.h"
#include "tandem/comm/launch.h"
#include "tandem/device/device.h"

namespace tandem::comm {
namespace {

constexpr double kDeadline_s = 60;
constexpr int64_t kMessageElements = 3 << 20;

void beside(Group& world) {
  const at::Device device = device::device_named("auto", "the device", world.rank(), world.size());
  device::backend_of(device).use(device);
  with_device_groups(world, {device, device::host_synchronizer(device)}, kDeadline_s,
                     [&] { device_suite::everything(world, kMessageElements); });
}

}  // namespace
}  // namespace tandem::comm

int main(int argc, char** argv) {
  using namespace tandem;
  try {
    if (argc > 1 && std::string_view(argv[1]) == "beside") comm::run_mpi(comm::kDeadline_s, comm::beside);
    else comm::run_c10d(comm::kDeadline_s, [](comm::Group& world) { comm::device_suite::everything(world, comm::kMessageElements); });
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return exit_code_of(e);
  }
  return testing::UnitTest::GetInstance()->Failed() ? 1 : 0;
}
