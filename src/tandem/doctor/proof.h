// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a device was asked to prove before anyone trusts what it computes, and what came of it: `tandem doctor --device`.

#include <c10/core/Device.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tandem/doctor/check.h"

namespace tandem::doctor {

/// kShort: kernels and memory. kAll: groups of devices, models and rates, too. kFull: also kernels at the sizes of models, and kernels and
/// memory of all other devices of the kind.
enum class Thoroughness { kShort, kAll, kFull };

struct Proof {
  std::string device, kernels, instructions;
  std::vector<Check> checks;
  double seconds = 0;

  int64_t num_failed() const;
  /// Names what failed, the first few; "" if nothing did.
  std::string fault() const;
};

/// As run.device names it; the first of its kind. The calling thread works with it from then on. To be called before the process has
/// threads: it prepares groups of devices, too. Errors: UserError naming --device without such a device.
at::Device device_to_prove(const std::string& name);

/// `kernels` as run.kernels. The calling thread works with the device from then on.
/// Errors: UserError where the kernels do not serve the device.
Proof prove(const std::string& kernels, at::Device device, Thoroughness thoroughness = Thoroughness::kAll, const Told& told = {});

nlohmann::json to_json(const Proof& proof);

/// One page, in parts that can be printed as they come: what is asked, a line for each check, and at last how many passed.
std::string heading(const std::string& kernels, at::Device device);
std::string line_of(const Check& check);
std::string last_line(const Proof& proof);

}  // namespace tandem::doctor
