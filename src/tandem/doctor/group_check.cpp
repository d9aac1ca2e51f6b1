// SPDX-License-Identifier: Apache-2.0
#include "tandem/doctor/group_check.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <functional>

#include "tandem/base/check.h"
#include "tandem/comm/launch.h"
#include "tandem/device/device.h"

namespace tandem::doctor {
namespace {

constexpr int kRanksOfHost = 2, kMostFake = 4;  // what the host computes for all
constexpr int64_t kCounts[] = {1, 1000, 300'001};

using comm::Group;

// Whole numbers, so that no order of a sum shows: those of rank `rank`, on this rank's device.
at::Tensor numbers(const Group& g, int rank, int64_t count, at::ScalarType dtype) {
  return (at::arange(count, at::kLong).remainder(7) + rank).to(dtype).to(g.nearest_device());
}

void expect(const at::Tensor& got, const at::Tensor& want, const char* what) {
  TANDEM_CHECK(at::equal(got.cpu(), want.cpu()), what, " of ", got.numel(), " elements of ", got.scalar_type(), " is not what it must be");
}

void sums(Group& g) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong})
    for (const int64_t count : kCounts) {
      at::Tensor sum = numbers(g, g.rank(), count, dtype), most = sum.clone(), want = numbers(g, 0, count, dtype);
      for (int r = 1; r < g.size(); ++r) want = want + numbers(g, r, count, dtype);
      g.all_reduce(sum, comm::ReduceOp::kSum);
      expect(sum, want, "the sum");
      g.all_reduce(most, comm::ReduceOp::kMax);
      expect(most, numbers(g, g.size() - 1, count, dtype), "the maximum");
      at::Tensor part = at::empty_like(sum);
      g.reduce_scatter(part, numbers(g, g.rank(), count * g.size(), dtype));
      at::Tensor whole = numbers(g, 0, count * g.size(), dtype);
      for (int r = 1; r < g.size(); ++r) whole = whole + numbers(g, r, count * g.size(), dtype);
      expect(part, whole.narrow(0, g.rank() * count, count), "the scattered sum");
    }
}

void copies(Group& g) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kByte})
    for (const int64_t count : kCounts) {
      std::vector<at::Tensor> of_each;
      for (int r = 0; r < g.size(); ++r) of_each.push_back(numbers(g, r, count, dtype));
      at::Tensor all = at::empty({count * g.size()}, of_each[0].options()), first = of_each[static_cast<size_t>(g.rank())].clone();
      g.all_gather(all, first);
      expect(all, at::cat(of_each), "what was gathered");
      g.broadcast(first, g.size() - 1);
      expect(first, of_each.back(), "what was broadcast");
    }
}

// Rank a sends 3 a + 5 b bytes to rank b.
void ragged_bytes(Group& g) {
  std::vector<int64_t> out, in;
  std::vector<at::Tensor> sent, wanted;
  for (int r = 0; r < g.size(); ++r) {
    out.push_back(3 * g.rank() + 5 * r), in.push_back(3 * r + 5 * g.rank());
    sent.push_back(numbers(g, 16 * g.rank() + r, out.back(), at::kByte));
    wanted.push_back(numbers(g, 16 * r + g.rank(), in.back(), at::kByte));
  }
  const at::Tensor from = at::cat(sent), want = at::cat(wanted);
  at::Tensor to = at::empty_like(want);
  g.all_to_all_v(from, out, to, in);
  expect(to, want, "what all ranks exchanged");
}

// Each sends to each before it receives, and takes the tags in another order.
void messages(Group& g) {
  for (const int tag : {1, 2})
    for (int r = 0; r < g.size(); ++r) g.send(numbers(g, 10 * g.rank() + r + tag, 5000 + tag, at::kFloat), r, tag);
  for (const int tag : {2, 1})
    for (int r = 0; r < g.size(); ++r) {
      at::Tensor message = at::empty({5000 + tag}, at::device(g.nearest_device()).dtype(at::kFloat));
      g.receive(message, r, tag);
      expect(message, numbers(g, 10 * r + g.rank() + tag, 5000 + tag, at::kFloat), "a message");
    }
}

Check exchanged(const std::string& name, at::Device device, int ranks, const std::function<void(Group&)>& exchange) {
  const bool has_devices = !device.is_cpu();
  return judged(name, [&] {
    comm::run_local(ranks, kGroupDeadline_s, [&](Group& world) {
      const at::Device mine(device.type(), has_devices ? static_cast<c10::DeviceIndex>(world.rank()) : device.index());
      device::backend_of(mine).use(mine);
      comm::with_device_groups(world, {mine, device::host_synchronizer(mine)}, kGroupDeadline_s, [&] {
        exchange(world);
        exchange(*world.split(world.rank() % 2, "half"));
      });
    });
    return join_text(ranks, has_devices ? " devices" : " threads");
  });
}

}  // namespace

void check_groups(at::Device device, const Told& told) {
  const device::Backend& kind = device::backend_of(device);
  const int ranks = device.is_cpu() ? kRanksOfHost : kind.has_host_memory ? std::min(kind.count(), kMostFake) : kind.count();
  if (ranks < 2) return;
  told(exchanged("group: sums", device, ranks, sums));
  told(exchanged("group: copies", device, ranks, copies));
  told(exchanged("group: bytes of several sizes", device, ranks, ragged_bytes));
  told(exchanged("group: messages", device, ranks, messages));
}

}  // namespace tandem::doctor
