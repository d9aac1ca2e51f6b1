// SPDX-License-Identifier: Apache-2.0
// A fake device must behave as a real one does at its worst: everything late, nothing by chance.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "tandem/base/error.h"
#include "tandem/device/allocation_meter.h"
#include "tests/fake_device/queue.h"
#include "tandem/device/device.h"
#include "tandem/device/host_copy.h"

namespace tandem::device {
namespace {

at::Device opened(int index = 0) {
  const at::Device device = device_named("fake", "--device", index, index + 1);
  backend_of(device).use(device);
  return device;
}

at::TensorOptions floats(at::Device device) { return at::TensorOptions(at::kFloat).device(device); }

// What lies there now, whatever is queued.
float now_at(const at::Tensor& t, int64_t i) { return static_cast<const float*>(t.data_ptr())[i]; }

TEST(FakeDevice, NothingIsComputedBeforeSomebodyWaits) {
  const at::Device device = opened();
  const at::Tensor x = at::arange(6, at::kFloat).to(device), y = x * 2 + 1;
  EXPECT_TRUE(std::isnan(now_at(y, 1))) << "an output that is not finished";
  EXPECT_EQ(y.cpu()[5].item<float>(), 11);
  EXPECT_EQ(now_at(y, 5), 11);
  at::Tensor z = at::zeros({4}, floats(device));
  z.add_(3);
  EXPECT_TRUE(std::isnan(now_at(z, 0)));
  synchronize(device);
  EXPECT_EQ(now_at(z, 0), 3);
}

TEST(FakeDevice, WhoWaitsForACopyToTheHostWaitsForItAlone) {
  const at::Device device = opened();
  HostCopy copy;
  for (const int64_t size : {3, 2, 50}) {  // into the room of the one before, and into a larger one
    const at::Tensor x = at::arange(size, at::kFloat).to(device) * 2;
    copy.begin(x);
    const at::Tensor later = x + 1;
    EXPECT_EQ(copy.wait()[size - 1].item<float>(), 2 * static_cast<float>(size - 1));
    EXPECT_TRUE(std::isnan(now_at(later, 0))) << "it waited for what was queued behind it";
    EXPECT_EQ(later.cpu()[0].item<float>(), 1);
  }
  const at::Tensor here = at::ones({2});
  copy.begin(here);
  EXPECT_TRUE(copy.wait().is_same(here)) << "there is nothing to copy";
  copy.begin(at::ones({2}, floats(device)));  // goes while the copy is under way
}

TEST(FakeDevice, ComputesWhatTheProcessorDoes) {
  const at::Device device = opened();
  const at::Tensor a = at::rand({7, 5}), b = at::rand({5, 3}), index = at::tensor({2, 0, 6}, at::kLong);
  const auto both = [&](const auto& run) {
    EXPECT_TRUE(at::equal(run(a, b, index), run(a.to(device), b.to(device), index.to(device)).cpu()));
  };
  both([](const at::Tensor& x, const at::Tensor& y, const at::Tensor&) { return at::mm(x, y); });
  both([](const at::Tensor& x, const at::Tensor&, const at::Tensor& i) { return x.index_select(0, i).t().contiguous().sum(1); });
  both([](const at::Tensor& x, const at::Tensor&, const at::Tensor&) { return std::get<0>(x.sort(1)).cumsum(1); });
  both([](const at::Tensor& x, const at::Tensor&, const at::Tensor&) { return at::cat({x, x.narrow(0, 1, 2)}).logsumexp({1}); });
  both([](const at::Tensor& x, const at::Tensor&, const at::Tensor&) { return at::where(x > 0.5, x, 0.25).to(at::kBFloat16); });
  both([](const at::Tensor& x, const at::Tensor&, const at::Tensor&) { return at::bincount((x * 5).to(at::kLong).flatten(), {}, 5); });
}

TEST(FakeDevice, GradientsFlowThroughIt) {
  const at::Device device = opened();
  const at::Tensor x = at::rand({4, 3}), w = at::rand({3, 2});
  const auto gradient = [&](at::Device where) {
    const at::Tensor in = x.to(where, /*non_blocking=*/false, /*copy=*/true).requires_grad_(true);
    at::mm(in, w.to(where)).square().sum().cpu().backward();
    return in.grad().cpu();
  };
  EXPECT_TRUE(at::equal(gradient(device), gradient(at::kCPU)));
}

TEST(FakeDevice, TheHostMayChangeWhatItHasGiven) {
  const at::Device device = opened();
  at::Tensor host = at::ones({8});
  const at::Tensor there = host.to(device), late = at::zeros({8}, floats(device));
  late.copy_(host, /*non_blocking=*/true);
  host.fill_(7);
  EXPECT_EQ(there.cpu()[0].item<float>(), 1) << "a copy has read the host when it returns";
  EXPECT_EQ(late.cpu()[0].item<float>(), 7) << "one that does not block has not";
}

TEST(FakeDevice, FreedMemoryIsPoison) {
  const at::Device device = opened();
  at::Tensor gone = at::ones({1000}, floats(device));
  synchronize(device);
  const float* memory = static_cast<const float*>(gone.data_ptr());
  const at::Tensor sum = gone.sum();
  gone.reset();
  EXPECT_EQ(memory[3], 1) << "the sum that is queued still reads it";
  EXPECT_EQ(sum.item<float>(), 1000);
  synchronize(device);
  EXPECT_TRUE(std::isnan(memory[3]));
}

TEST(FakeDevice, TensorsOfSeveralDevicesDoNotMeet) {
  const at::Device device = opened(), other = opened(1);
  const at::Tensor here = at::ones({4}, floats(device)), there = at::ones({4}, floats(other)), host = at::ones({4});
  EXPECT_THROW((void)(here + there), c10::Error);
  EXPECT_THROW((void)(here + host), c10::Error);
  EXPECT_EQ((here + there.to(device)).sum().item<float>(), 8);
}

TEST(FakeDevice, WhatFailsThereIsToldToWhoWaits) {
  const at::Device device = opened(9);  // no other test's: it stays lost
  const at::Tensor x = at::zeros({3}, floats(device)), index = at::tensor({5}, at::kLong).to(device);
  at::Tensor out = at::zeros({1}, floats(device));
  at::index_select_out(out, x, 0, index);
  try {
    synchronize(device);
    ADD_FAILURE() << "an index outside was taken";
  } catch (const PeerError& e) {
    EXPECT_NE(std::string(e.what()).find("index_select"), std::string::npos) << e.what();
  }
  EXPECT_THROW(synchronize(device), PeerError) << "a device that is lost stays lost";
}

TEST(FakeDevice, MemoryComesAndGoesUnderFixedAddresses) {
  const at::Device device = opened();
  Arena arena("device", 0, device);
  Region region = arena.reserve("weights", {100'000}, at::kFloat);
  region.back();
  const at::Tensor view = region.tensor().narrow(0, 5, 10);
  EXPECT_EQ(view.device(), device);
  at::Tensor(view).fill_(4);
  EXPECT_EQ(view.sum().item<float>(), 40);
  region.release();
  region.back();
  EXPECT_EQ(view.sum().item<float>(), 0);
}

TEST(FakeDevice, TheMeterCountsItsTensorsAlone) {
  const at::Device device = opened();
  Arena arena("device", 0, device);
  const AllocationMeter meter(arena, "activations");
  const at::Tensor there = at::empty({1000}, floats(device)), host = at::empty({5000});
  EXPECT_EQ(meter.bytes(), 4000);
}

TEST(FakeDevice, AGraphIsReplayedOnWhatItsTensorsHoldNow) {
  const at::Device device = opened();
  const at::Tensor in = at::ones({3}, floats(device));
  at::Tensor out;
  const auto graph = backend_of(device).make_graphs(device)->make();
  graph->capture([&] { out = (in + 1).mul_(10); });
  EXPECT_TRUE(std::isnan(out.cpu()[0].item<float>())) << "what was captured has not run";
  for (const float value : {1.0f, 5.0f}) {
    at::Tensor(in).fill_(value);
    graph->replay();
    EXPECT_EQ(out.cpu()[2].item<float>(), (value + 1) * 10);
  }
}

TEST(FakeDevice, WhatAGraphComputedIsGoneWhenAnotherOneRuns) {
  const at::Device device = opened();
  const at::Tensor in = at::ones({3}, floats(device));
  at::Tensor first, second, apart;
  const auto graphs = backend_of(device).make_graphs(device), elsewhere = backend_of(device).make_graphs(device);
  const auto one = graphs->make(), other = graphs->make(), third = elsewhere->make();
  one->capture([&] { first = in + 1; });
  other->capture([&] { second = in + 2; });
  third->capture([&] { apart = in + 3; });
  third->replay();
  one->replay();
  const at::Tensor kept = first.clone();
  other->replay();
  EXPECT_TRUE(std::isnan(first.cpu()[0].item<float>()));
  EXPECT_EQ(kept.cpu()[0].item<float>(), 2);
  EXPECT_EQ(second.cpu()[0].item<float>(), 3);
  EXPECT_EQ(apart.cpu()[0].item<float>(), 4) << "of graphs that share nothing with these";
}

// As libtorch does on CUDA: what a capture frees it takes again, and so do those after it.
TEST(FakeDevice, GraphsShareMemoryThatGoesWithTheLastOfThem) {
  const at::Device device = opened(8);  // no other test's
  fake::Queue& queue = fake::queue_of(8);
  const at::Tensor in = at::ones({256}, floats(device));
  at::Tensor out = at::zeros({256}, floats(device));
  const auto graphs = backend_of(device).make_graphs(device);
  auto large = graphs->make(), small = graphs->make();
  const auto grows_by = [&, before = queue.taken_bytes()] { return queue.taken_bytes() - before; };
  large->capture([&] {
    at::Tensor x = in + 1;
    for (int turn = 0; turn < 3; ++turn) x = x * 2;  // two tensors of 1024 bytes at a time
    out.copy_(x);
  });
  synchronize(device);
  EXPECT_EQ(grows_by(), 2 * 1024);
  small->capture([&] { out.narrow(0, 0, 16).copy_((in.narrow(0, 0, 16) + 3) * 5); });
  synchronize(device);
  EXPECT_EQ(grows_by(), 2 * 1024) << "room for the smaller one is there";
  for (int turn = 0; turn < 2; ++turn) {
    large->replay();
    EXPECT_EQ(out.cpu()[3].item<float>(), 16);
    small->replay();
    EXPECT_EQ(out.cpu()[3].item<float>(), 20);
    EXPECT_EQ(out.cpu()[20].item<float>(), 16);
  }
  large.reset();
  synchronize(device);
  EXPECT_EQ(grows_by(), 2 * 1024);
  small.reset();
  synchronize(device);
  EXPECT_EQ(grows_by(), 0);
  EXPECT_EQ(queue.num_captures(), 2);
}

TEST(FakeDevice, WhatIsCapturedMustNotWaitNorReadTheHost) {
  const at::Device device = opened();
  const at::Tensor in = at::ones({3}, floats(device)), host = at::ones({3});
  EXPECT_THROW(backend_of(device).make_graphs(device)->make()->capture([&] { (void)in.sum().item<float>(); }), c10::AcceleratorError);
  EXPECT_THROW(backend_of(device).make_graphs(device)->make()->capture([&] { (void)(in + host.to(device)); }), c10::Error);
  const auto fails = [] { throw InternalError("ours"); };
  EXPECT_THROW(backend_of(device).make_graphs(device)->make()->capture(fails), InternalError) << "no failure of the device";
  EXPECT_EQ(in.sum().item<float>(), 3) << "it goes on afterwards";
}

TEST(Devices, WhoAsksForWhatIsNotThereIsTold) {
  const auto refused = [](const std::string& name, int ranks) -> std::string {
    try {
      (void)device_named(name, "run.device", 0, ranks);
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(refused("tpu", 1).find("auto, cpu, cuda, npu or fake"), std::string::npos);
  EXPECT_NE(refused("fake", 17).find("16 of them for its 17 ranks"), std::string::npos);
  if (cuda::backend().count() == 0) EXPECT_NE(refused("cuda", 1).find("run.device: is cuda, and "), std::string::npos);
  if (cuda::backend().count() + npu::backend().count() == 0) EXPECT_EQ(device_named("auto", "run.device"), at::Device(at::kCPU));
}

}  // namespace
}  // namespace tandem::device
