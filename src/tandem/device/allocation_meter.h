// SPDX-License-Identifier: Apache-2.0
#pragma once
// What passes through a model take for a while: the tensors that libtorch allocates, counted beside those of the arena.

#include <cstdint>
#include <memory>

#include "tandem/device/arena.h"

namespace c10 {
class DebugInfoGuard;
}

namespace tandem::device {

/// Counts every tensor that this thread allocates and frees while it lives in the arena, under `owner`; in the end that is none again.
///
/// Threads    the one that made it; one at a time. Memory that kernels take on other threads is not counted.
class AllocationMeter {
 public:
  AllocationMeter(Arena& arena, Owner owner);
  ~AllocationMeter();
  AllocationMeter(const AllocationMeter&) = delete;
  AllocationMeter& operator=(const AllocationMeter&) = delete;

  int64_t bytes() const;
  int64_t peak_bytes() const;

 private:
  class Report;
  std::shared_ptr<Report> report_;  // libtorch holds it, too
  std::unique_ptr<c10::DebugInfoGuard> guard_;
};

}  // namespace tandem::device
