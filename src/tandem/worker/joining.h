// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who may generate for a run: a worker that draws as the run's own rollout would, or any where the loss corrects for the difference.

#include <string>

#include "tandem/config/config.h"
#include "tandem/queue/message.h"

namespace tandem::worker {

/// How the run's own rollout draws, and how far a worker may differ.
struct Drawing {
  std::string dtype;             ///< of computing
  std::string device;            ///< kind of it, such as cpu
  bool is_device_open = false;   ///< run.device is auto: a worker takes what its machine has
  bool is_corrected = false;     ///< the loss weighs what another policy than the trained one drew
  bool is_parity = false;        ///< rollout and training have the same bits: the dtype is not open

  bool operator==(const Drawing&) const = default;
  static void each(auto& m, auto&& field) {
    field(m.dtype), field(m.device), field(m.is_device_open), field(m.is_corrected), field(m.is_parity);
  }
};

/// Of a run that computes on this kind of device. Errors: as config::algorithm_of.
Drawing drawing_of(const config::RunConfig& config, const std::string& device);
/// What such a worker draws with, such as "bfloat16 on cpu"; "" for one that only passes on.
std::string drawing_text(const Drawing& of_run, const queue::call::Join& worker);
/// Why such a worker is not let in, and what would be right; "" if it is welcome.
std::string refusal_of(const Drawing& of_run, const queue::call::Join& worker);

}  // namespace tandem::worker
