// SPDX-License-Identifier: Apache-2.0
#include "tandem/doctor/proof.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/comm/launch.h"
#include "tandem/device/device.h"
#include "tandem/doctor/group_check.h"
#include "tandem/doctor/kernel_check.h"
#include "tandem/doctor/memory_check.h"
#include "tandem/doctor/model_check.h"
#include "tandem/doctor/speed_check.h"

namespace tandem::doctor {
namespace {

void check_each_kernel(const model::kernel::Backend& backend, at::Device device, Extent extent, const Told& told) {
  const std::string where = extent == Extent::kOddSizes ? "" : ", sizes of models";
  check_kernels(backend, device, extent, [&](const KernelReport& report) {
    for (const auto& [kernel, worst] : report.worst)
      if (std::ranges::find(report.faults, kernel, &KernelFault::kernel) == report.faults.end())
        told({join_text("kernel ", kernel, where), true, join_text(worst, " of what rounding allows")});
    for (const KernelFault& fault : report.faults) told({join_text("kernel ", fault.kernel, where), false, fault.what});
  });
}

// Of the others of its kind, by their numbers.
void check_others(const model::kernel::Backend& backend, at::Device device, const Told& told) {
  for (int i = 0; !device.is_cpu() && i < device::backend_of(device).count(); ++i) {
    const at::Device other(device.type(), static_cast<at::DeviceIndex>(i));
    if (other == device) continue;
    device::backend_of(other).use(other);
    const Told numbered = [&](const Check& check) { told({join_text("device ", i, ": ", check.name), check.passed, check.detail}); };
    check_each_kernel(backend, other, Extent::kOddSizes, numbered);
    check_memory(other, numbered);
  }
  device::backend_of(device).use(device);
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

at::Device device_to_prove(const std::string& name) {
  comm::prepare_device_groups(kGroupDeadline_s);
  const at::Device device = device::device_named(name, "--device");
  device::backend_of(device).use(device);
  return device;
}

Proof prove(const std::string& kernels, at::Device device, Thoroughness thoroughness, const Told& told) {
  device::backend_of(device).use(device);
  const model::kernel::Backend& backend = model::kernel::backend_named(kernels, device, "--kernels");
  const double begin_s = now_s();
  Proof proof{device::backend_of(device).name, backend.name, backend.instructions(c10::kBFloat16, false, device), {}, 0};
  const Told note = [&](const Check& check) {
    if (told) told(check);
    proof.checks.push_back(check);
  };
  check_each_kernel(backend, device, Extent::kOddSizes, note);
  check_memory(device, note);
  if (thoroughness != Thoroughness::kShort) {
    check_groups(device, note);  // of all devices of the kind, not of a run's alone
    check_models(backend, device, note);
    measure_speed(backend, device, note);
  }
  if (thoroughness == Thoroughness::kFull) {
    check_each_kernel(backend, device, Extent::kSizesOfModels, note);
    check_others(backend, device, note);
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

std::string heading(const std::string& kernels, at::Device device) {
  const model::kernel::Backend& backend = model::kernel::backend_named(kernels, device, "--kernels");
  const device::Backend& kind = device::backend_of(device);
  return join_text("device ", kind.name, ": ", kind.description(device), "\nkernels ", backend.name, " (",
                   backend.instructions(c10::kBFloat16, false, device),
                   ")\nA number behind a kernel is its largest error, as a share of what rounding allows: above 1 it is wrong.\n");
}

std::string line_of(const Check& check) {
  std::ostringstream out;
  out << (!check.passed ? "WRONG  " : check.name.starts_with("speed: ") ? "       " : "ok     ") << std::left << std::setw(56)
      << check.name << " " << check.detail << "\n";
  return out.str();
}

std::string last_line(const Proof& p) {
  return join_text(std::ssize(p.checks) - p.num_failed(), " passed, ", p.num_failed(), " failed\n");
}

}  // namespace tandem::doctor
