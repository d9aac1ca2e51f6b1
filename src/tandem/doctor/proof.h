// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a device was asked to prove before anyone trusts what it computes, and what came of it: `tandem doctor --device`.

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
  /// Names what failed; "" if nothing did.
  std::string fault() const;
};

/// `kernels` as run.kernels, `device` as run.device. The short form has no models. Errors: UserError for another name, or without such a
/// device.
Proof prove(const std::string& kernels, const std::string& device, bool is_short = false);

nlohmann::json to_json(const Proof& proof);
/// One page: a line for each check, and how many passed.
std::string to_text(const Proof& proof);

}  // namespace tandem::doctor
