// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a device was asked to prove before anyone trusts what it computes, and what came of it: `tandem doctor --device`.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tandem/doctor/kernel_check.h"

namespace tandem::doctor {

struct Proof {
  std::string device, kernels, instructions;
  KernelReport report;
  double seconds = 0;

  /// Names the kernels that are wrong; "" if none is.
  std::string fault() const;
};

/// `kernels` as run.kernels, `device` as run.device. Errors: UserError for another name.
Proof prove(const std::string& kernels, const std::string& device);

nlohmann::json to_json(const Proof& proof);
/// One page.
std::string to_text(const Proof& proof);

}  // namespace tandem::doctor
