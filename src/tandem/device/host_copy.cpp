// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/host_copy.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/device/device.h"

namespace tandem::device {

HostCopy::~HostCopy() {
  try {
    (void)wait();  // the device may be writing into the room
  } catch (const std::exception&) {  // a lost device writes nothing
  }
}

void HostCopy::begin(const at::Tensor& tensor) {
  TANDEM_CHECK(tensor.is_contiguous(), "a copy to the host of what is not contiguous");
  (void)wait();  // for one that nobody has waited for
  copy_ = tensor;
  if (tensor.is_cpu()) return;
  if (!room_.defined() || room_.numel() < tensor.numel() || room_.scalar_type() != tensor.scalar_type()) {
    const bool pins = backend_of(tensor.device()).pin != nullptr;
    room_ = at::empty({2 * tensor.numel()}, tensor.options().device(at::kCPU).pinned_memory(pins));
  }
  copy_ = room_.narrow(0, 0, tensor.numel()).view(tensor.sizes());
  copy_.copy_(tensor, /*non_blocking=*/true);
  arrived_.emplace(tensor.device().type());
  arrived_->record(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
}

at::Tensor HostCopy::wait() {
  if (auto arrived = std::exchange(arrived_, std::nullopt)) arrived->synchronize();
  return copy_;
}

}  // namespace tandem::device
