// SPDX-License-Identifier: Apache-2.0
#include "comm_suite.h"
#include "device_suite.h"
#include "tandem/base/error.h"
#include "tandem/comm/launch.h"
#include "tandem/device/device.h"

namespace tandem::comm {
namespace {

class LocalComm : public testing::TestWithParam<std::tuple<int, suite::Case>> {};

TEST_P(LocalComm, Conforms) {
  const auto& [ranks, c] = GetParam();
  run_local(ranks, 60, c.body);
}

INSTANTIATE_TEST_SUITE_P(Ranks, LocalComm, testing::Combine(testing::Values(1, 2, 3, 4), testing::ValuesIn(suite::cases())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name + std::string("_") + std::to_string(std::get<0>(info.param));
                         });

TEST(SingleGroup, Conforms) {
  for (const suite::Case& c : suite::cases()) c.body(*single());
}

TEST(LocalDevices, TensorsGoFromDeviceToDevice) {
  run_local(3, 60, [](Group& world) {
    const at::Device device = device::device_named("fake", "the device", world.rank(), world.size());
    device::backend_of(device).use(device);
    with_device_groups(world, {device, device::host_synchronizer(device)}, 60, [&] {
      ASSERT_EQ(world.nearest_device(), device);
      device_suite::everything(world, 3 << 20);
    });
    EXPECT_EQ(world.nearest_device(), world.device());
  });
}

TEST(LocalDevices, WithoutACarrierTheyGoByWayOfTheHost) {
  run_local(2, 60, [](Group& world) {
    const at::Device device = device::device_named("fake", "the device", world.rank(), world.size());
    device::backend_of(device).use(device);
    const at::Tensor mine = at::full({5}, world.rank(), at::device(device).dtype(at::kLong));
    at::Tensor all = at::full({10}, -1, at::device(device).dtype(at::kLong)), turned = at::zeros_like(mine.narrow(0, 0, 2));
    world.all_gather(all, mine);
    EXPECT_EQ(all.sum().item<int64_t>(), 5);
    const std::vector<int64_t> each = {8, 8};
    world.all_to_all_v(mine.narrow(0, 0, 2), each, turned, each);
    EXPECT_EQ(turned.cpu()[0].item<int64_t>(), 0);
    EXPECT_EQ(turned.cpu()[1].item<int64_t>(), 1);
  });
}

TEST(LocalMessages, AFaultNamesTheSender) {
  for (const suite::Fault& fault : suite::message_faults()) {
    std::string said = "nothing";
    try {
      run_local(2, fault.deadline_s, [&](Group& world) { suite::play(fault, world, said); });
    } catch (const PeerError&) {
    }
    EXPECT_EQ(said.substr(0, std::strlen(fault.survivor_says)), fault.survivor_says) << fault.name;
  }
}

}  // namespace
}  // namespace tandem::comm
