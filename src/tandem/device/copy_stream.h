// SPDX-License-Identifier: Apache-2.0
#pragma once
// Copies beside what computes: another stream of a device. On the processor, and where a device has one stream, all runs in its order.

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>

namespace tandem::device {

/// Threads    one; that which computes.
/// Errors     libtorch's of what the device refuses.
class CopyStream {
 public:
  explicit CopyStream(at::Device device);

  /// Queues there what `copies` queues.
  void run(const std::function<void()>& copies);
  /// What is queued there from now on waits for all that computes so far.
  void wait_for_compute();
  /// What computes from now on waits for all that is queued there so far.
  void let_compute_wait();
  /// What is queued there from now on waits for all that `other` has so far.
  void wait_for(const CopyStream& other);
  /// The host waits for all that is queued there.
  void synchronize();

 private:
  c10::Stream current() const;

  at::Device device_;
  std::optional<c10::Stream> stream_;  // none on the processor
};

}  // namespace tandem::device
