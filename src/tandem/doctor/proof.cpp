// SPDX-License-Identifier: Apache-2.0
#include "tandem/doctor/proof.h"

#include <algorithm>
#include <iomanip>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/device/device.h"
#include "tandem/doctor/group_check.h"
#include "tandem/doctor/kernel_check.h"
#include "tandem/doctor/memory_check.h"
#include "tandem/doctor/model_check.h"
#include "tandem/doctor/speed_check.h"

namespace tandem::doctor {
namespace {

std::vector<Check> check_each_kernel(const model::kernel::Backend& backend, at::Device device) {
  const KernelReport report = check_kernels(backend, device);
  std::vector<Check> checks;
  for (const auto& [kernel, worst] : report.worst)
    checks.push_back({"kernel " + kernel, true, join_text(worst, " of what rounding allows")});
  for (const KernelFault& fault : report.faults) {
    const std::string name = "kernel " + fault.kernel;
    const auto known = std::ranges::find(checks, name, &Check::name);
    if (known == checks.end()) checks.push_back({name, false, fault.what});
    else *known = {name, false, fault.what};
  }
  return checks;
}

}  // namespace

int64_t Proof::num_failed() const { return std::ranges::count(checks, false, &Check::passed); }

std::string Proof::fault() const {
  constexpr int64_t kNamed = 3;
  std::string names;
  int64_t named = 0;
  for (const Check& check : checks)
    if (!check.passed && named++ < kNamed) names += (names.empty() ? "" : ", ") + check.name;
  if (names.empty()) return "";
  if (named > kNamed) names += join_text(" and ", named - kNamed, " more");
  return join_text("it does not prove itself: ", names, "; nothing that is computed there can be trusted");
}

Proof prove(const std::string& kernels, const std::string& device, bool is_short) {
  return prove(kernels, device::device_named(device, "--device"), is_short);
}

Proof prove(const std::string& kernels, at::Device device, bool is_short) {
  device::backend_of(device).use(device);
  const model::kernel::Backend& backend = model::kernel::backend_named(kernels, device, "--kernels");
  const double begin_s = now_s();
  Proof proof{device::backend_of(device).name, backend.name, backend.instructions(c10::kBFloat16, false, device), {}, 0};
  const auto add = [&](std::vector<Check> more) { std::ranges::move(more, std::back_inserter(proof.checks)); };
  add(check_each_kernel(backend, device));
  add(check_memory(device));
  if (!is_short) {
    add(check_groups(device));  // of all devices of the kind, not of a run's alone
    add(check_models(backend, device));
    add(measure_speed(backend, device));
  }
  proof.seconds = now_s() - begin_s;
  return proof;
}

nlohmann::json to_json(const Proof& p) {
  nlohmann::json checks = nlohmann::json::array();
  for (const Check& check : p.checks) checks.push_back({{"name", check.name}, {"passed", check.passed}, {"detail", check.detail}});
  return {{"device", p.device},   {"kernels", p.kernels}, {"instructions", p.instructions},
          {"seconds", p.seconds}, {"checks", checks},     {"failed", p.num_failed()}};
}

std::string to_text(const Proof& p) {
  std::ostringstream out;
  out << "device " << p.device << ", kernels " << p.kernels << " (" << p.instructions << "), " << std::fixed << std::setprecision(1)
      << p.seconds << " s\n";
  for (const Check& check : p.checks)
    out << (!check.passed ? "WRONG  " : check.name.starts_with("speed: ") ? "       " : "ok     ")
        << std::left << std::setw(56) << check.name << " " << check.detail << "\n";
  out << std::ssize(p.checks) - p.num_failed() << " passed, " << p.num_failed() << " failed\n";
  return out.str();
}

}  // namespace tandem::doctor
