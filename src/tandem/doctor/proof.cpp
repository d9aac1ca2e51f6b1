// SPDX-License-Identifier: Apache-2.0
#include "tandem/doctor/proof.h"

#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"

namespace tandem::doctor {

std::string Proof::fault() const {
  std::string names;
  for (const KernelFault& fault : report.faults) names += (names.empty() ? "" : ", ") + fault.kernel;
  if (names.empty()) return "";
  return join_text("kernels that do not compute their formula: ", names, "; nothing that this device trains can be trusted");
}

Proof prove(const std::string& kernels, const std::string& device) {
  const model::kernel::Backend& backend = model::kernel::backend_named(kernels, "--kernels");
  const double begin_s = now_s();
  Proof proof{device, backend.name, backend.instructions(c10::kBFloat16, false), check_kernels(backend, c10::Device(device)), 0};
  proof.seconds = now_s() - begin_s;
  return proof;
}

nlohmann::json to_json(const Proof& p) {
  nlohmann::json faults = nlohmann::json::array();
  for (const KernelFault& fault : p.report.faults) faults.push_back({{"kernel", fault.kernel}, {"what", fault.what}});
  return {{"device", p.device},   {"kernels", p.kernels},           {"instructions", p.instructions},
          {"seconds", p.seconds}, {"compared", p.report.num_compared}, {"worst", p.report.worst},
          {"faults", faults}};
}

std::string to_text(const Proof& p) {
  std::ostringstream out;
  out << "kernels " << p.kernels << " (" << p.instructions << ") on " << p.device
      << ", against their formulas in double: " << p.report.worst.size() << " kernels, " << p.report.num_compared << " tensors, "
      << std::fixed << std::setprecision(1) << p.seconds << " s\n";
  out << "largest error of each, as a share of what its rounding allows:\n" << std::setprecision(2);
  for (const auto& [kernel, worst] : p.report.worst) out << "  " << std::left << std::setw(28) << kernel << worst << "\n";
  for (const KernelFault& fault : p.report.faults) out << "WRONG " << fault.kernel << ": " << fault.what << "\n";
  if (p.report.faults.empty()) out << "all agree\n";
  return out.str();
}

}  // namespace tandem::doctor
