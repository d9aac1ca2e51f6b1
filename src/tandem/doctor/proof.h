// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a device was asked to prove before anyone trusts what it computes, and what came of it: `tandem doctor --device`.

#include <c10/core/Device.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tandem/doctor/check.h"

namespace tandem::doctor {

struct Proof {
  std::string device, kernels, instructions;
  std::vector<Check> checks;
  double seconds = 0;

  int64_t num_failed() const;
  /// Names what failed, the first few; "" if nothing did.
  std::string fault() const;
};

/// `kernels` as run.kernels. The short form is of kernels and memory. The calling thread works with the device from then on.
/// Errors: UserError where the kernels do not serve the device.
Proof prove(const std::string& kernels, at::Device device, bool is_short = false);
/// The same, of a device by its name, as run.device has it. Errors: UserError also without such a device.
Proof prove(const std::string& kernels, const std::string& device, bool is_short = false);

nlohmann::json to_json(const Proof& proof);
/// One page: a line for each check, and how many passed.
std::string to_text(const Proof& proof);

}  // namespace tandem::doctor
