// SPDX-License-Identifier: Apache-2.0
#include "tandem/doctor/memory_check.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/strings.h"
#include "tandem/device/device.h"
#include "tandem/device/swappable.h"

namespace tandem::doctor {
namespace {

// More than eight of the chunks that the memory of a large tensor has, and a part of one.
int64_t elements_for(at::Device device) {
  const bool is_host = device.is_cpu() || device::backend_of(device).has_host_memory;
  return (is_host ? 64 << 20 : 288 << 20) / 4 + 1000;
}

at::Tensor numbers(int64_t n) { return at::arange(n, at::kInt).view(at::kFloat); }

std::string zeros_where_memory_is_new(at::Device device) {
  const int64_t n = elements_for(device);
  device::Arena arena("device", 0, device);
  device::Region region = arena.reserve("proof", {n}, at::kFloat);
  TANDEM_CHECK(arena.bytes() == 0, "addresses count ", arena.bytes(), " bytes");
  for (int turn = 0; turn < 2; ++turn) {
    region.back();
    TANDEM_CHECK(region.tensor().count_nonzero().item<int64_t>() == 0, "new memory is not zero");
    at::Tensor(region.tensor()).copy_(numbers(n));
    TANDEM_CHECK(at::equal(region.tensor().cpu().view(at::kInt), numbers(n).view(at::kInt)), "memory does not keep what was written");
    region.release();
  }
  return join_text(bytes_text(n * 4), " by ", region.num_chunks(), " chunks");
}

std::string leaves_and_comes_back(at::Device device) {
  const int64_t n = elements_for(device);
  device::Arena arena("device", 0, device), host("host");
  device::Swappable memory({arena, "proof", &host}, n, at::kFloat);
  const at::Tensor address = memory.tensor();
  address.copy_(numbers(n));
  double seconds = 0;
  for (int turn = 0; turn < 3; ++turn) {
    device::synchronize(device);
    const double begin_s = now_s();
    memory.leave();
    TANDEM_CHECK(memory.is_away() && arena.bytes() == 0, "what left still counts ", arena.bytes(), " bytes");
    memory.come_back();
    device::synchronize(device);
    seconds = now_s() - begin_s;
    TANDEM_CHECK(address.data_ptr() == memory.tensor().data_ptr(), "it came back to another address");
    TANDEM_CHECK(at::equal(memory.tensor().cpu().view(at::kInt), numbers(n).view(at::kInt)), "it came back changed");
  }
  return join_text(bytes_text(n * 4), " there and back in ", static_cast<int64_t>(seconds * 1e6), " us");
}

std::string budget_is_kept(at::Device device) {
  const int64_t n = elements_for(device);
  device::Arena arena("device", n * 4 - 1, device);
  device::Region region = arena.reserve("proof", {n}, at::kFloat);
  try {
    region.back();
  } catch (const UserError&) {
    TANDEM_CHECK(arena.bytes() == 0, "a refused request counts ", arena.bytes(), " bytes");
    return "a request above the budget is refused";
  }
  TANDEM_CHECK(false, "a request above the budget was given");
}

}  // namespace

void check_memory(at::Device device, const Told& told) {
  told(judged("memory: new is zero, and keeps what is written", [&] { return zeros_where_memory_is_new(device); }));
  told(judged("memory: leaves for the host and comes back", [&] { return leaves_and_comes_back(device); }));
  told(judged("memory: the budget", [&] { return budget_is_kept(device); }));
}

}  // namespace tandem::doctor
