// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/copy_stream.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace tandem::device {
namespace {

// What `later` queues from now on waits for all that `earlier` has so far.
void order(const c10::Stream& earlier, const c10::Stream& later) {
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

}  // namespace

CopyStream::CopyStream(at::Device device) : device_(device) {
  if (!device.is_cpu()) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

c10::Stream CopyStream::current() const { return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_); }

void CopyStream::run(const std::function<void()>& copies) {
  if (!stream_) return copies();
  const c10::StreamGuard guard(*stream_);
  copies();
}

void CopyStream::wait_for_compute() {
  if (stream_) order(current(), *stream_);
}

void CopyStream::let_compute_wait() {
  if (stream_) order(*stream_, current());
}

void CopyStream::wait_for(const CopyStream& other) {
  if (stream_) order(*other.stream_, *stream_);
}

void CopyStream::synchronize() {
  if (stream_) stream_->synchronize();
}

}  // namespace tandem::device
