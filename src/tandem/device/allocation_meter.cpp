// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/allocation_meter.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>

namespace tandem::device {

// libtorch tells the memory profiler of a thread about each allocation and release.
class AllocationMeter::Report final : public c10::MemoryReportingInfoBase {
 public:
  Report(Arena& arena, Owner owner) : arena_(arena), owner_(std::move(owner)) {}
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (device.type() == arena_.device().type()) count(bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }

  void count(int64_t bytes) {
    arena_.count(owner_, bytes);
    bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, bytes_);
  }
  int64_t bytes() const { return bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  Arena arena_;  // shares the account
  Owner owner_;
  int64_t bytes_ = 0, peak_bytes_ = 0;
};

AllocationMeter::AllocationMeter(Arena& arena, Owner owner)
    : report_(std::make_shared<Report>(arena, std::move(owner))),
      guard_(std::make_unique<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE, report_)) {}

AllocationMeter::~AllocationMeter() {
  guard_.reset();
  report_->count(-report_->bytes());  // what lives on is somebody else's from here
}

int64_t AllocationMeter::bytes() const { return report_->bytes(); }
int64_t AllocationMeter::peak_bytes() const { return report_->peak_bytes(); }

}  // namespace tandem::device
