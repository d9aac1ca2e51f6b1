// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which memory of a rank is on the device in which stage: the state machine of docs/design/offload.md.
// runtime/rl_run.cpp:enter asks it before each stage.
//
//   rollout, ahead   rollout weights, KV cache       reference   reference weights
//   train            weights, gradients, optimizer   switch      weights, handed over bucket by bucket
//
// Each stage says what it needs (planner/schedule.h). What may leave does so when a stage begins that needs other memory.

#include <cstdint>
#include <functional>
#include <vector>

#include "tandem/device/swappable.h"
#include "tandem/planner/schedule.h"

namespace tandem::policy {

/// Ownership  uses what its parts are made of, which must outlive it.
/// Threads    one.
/// Errors     UserError if a part does not fit into the arena's budget.
class Residency {
 public:
  /// Something that may leave the device.
  struct Part {
    planner::Resident what;
    std::function<bool()> is_away;
    std::function<int64_t()> leave;      ///< returns the bytes copied to the host
    std::function<int64_t()> come_back;  ///< returns the bytes copied from it; null: a switch brings it
  };
  bool empty() const { return parts_.empty(); }
  /// Whether what a stage needs is on the device in every stage.
  bool is_always_here(const planner::Stage& stage) const;
  void add(Part part) { parts_.push_back(std::move(part)); }
  /// Memory that leaves and comes back as a whole.
  void add(planner::Resident what, device::Swappable& memory) {
    add({what, [&] { return memory.is_away(); }, [&] { return memory.leave(); }, [&] { return memory.come_back(); }});
  }

  /// What the stage does not need leaves, then what it needs comes. A stage that needs nothing changes nothing. `before_saved` runs before
  /// the first move of weights or an optimizer that are trained. Returns the bytes copied.
  int64_t enter(const planner::Stage& stage, const std::function<void()>& before_saved);

 private:
  std::vector<Part> parts_;
};

}  // namespace tandem::policy
