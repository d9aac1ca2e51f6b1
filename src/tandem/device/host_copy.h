// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small tensor on its way to the host, which waits for it alone and not for what was queued behind it.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

namespace tandem::device {

/// Ownership  owns memory of the host, of libtorch's allocator of pinned memory where that is faster, for the largest tensor so far.
/// Threads    one at a time.
class HostCopy {
 public:
  HostCopy() = default;
  ~HostCopy();
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  /// Queues the copy of a contiguous tensor on the device, or takes one that is on the processor as it is.
  void begin(const at::Tensor& tensor);
  /// The tensor on the host, until the next begin(). Errors: libtorch's of what failed on the device.
  at::Tensor wait();

 private:
  at::Tensor copy_, room_;  // room_: flat
  std::optional<c10::Event> arrived_;  // while it is under way
};

}  // namespace tandem::device
