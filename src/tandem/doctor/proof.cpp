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

std::vector<Check> check_each_kernel(const model::kernel::Backend& backend, at::Device device, Extent extent) {
  const std::string where = extent == Extent::kOddSizes ? "" : ", sizes of models";
  const KernelReport report = check_kernels(backend, device, extent);
  std::vector<Check> checks;
  for (const auto& [kernel, worst] : report.worst)
    checks.push_back({join_text("kernel ", kernel, where), true, join_text(worst, " of what rounding allows")});
  for (const KernelFault& fault : report.faults) {
    const std::string name = join_text("kernel ", fault.kernel, where);
    const auto known = std::ranges::find(checks, name, &Check::name);
    if (known == checks.end()) checks.push_back({name, false, fault.what});
    else *known = {name, false, fault.what};
  }
  return checks;
}

// Of the others of its kind, by their numbers.
std::vector<Check> check_others(const model::kernel::Backend& backend, at::Device device) {
  std::vector<Check> checks;
  for (int i = 0; !device.is_cpu() && i < device::backend_of(device).count(); ++i) {
    const at::Device other(device.type(), static_cast<at::DeviceIndex>(i));
    if (other == device) continue;
    device::backend_of(other).use(other);
    for (std::vector<Check> more : {check_each_kernel(backend, other, Extent::kOddSizes), check_memory(other)})
      for (Check& check : more) {
        check.name = join_text("device ", i, ": ", check.name);
        checks.push_back(std::move(check));
      }
  }
  device::backend_of(device).use(device);
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

at::Device device_to_prove(const std::string& name) { return device::device_named(name, "--device"); }

Proof prove(const std::string& kernels, at::Device device, Thoroughness thoroughness, const Told& told) {
  device::backend_of(device).use(device);
  const model::kernel::Backend& backend = model::kernel::backend_named(kernels, device, "--kernels");
  const double begin_s = now_s();
  Proof proof{device::backend_of(device).name, backend.name, backend.instructions(c10::kBFloat16, false, device), {}, 0};
  const auto add = [&](std::vector<Check> more) {
    for (Check& check : more) {
      if (told) told(check);
      proof.checks.push_back(std::move(check));
    }
  };
  add(check_each_kernel(backend, device, Extent::kOddSizes));
  add(check_memory(device));
  if (thoroughness != Thoroughness::kShort) {
    add(check_groups(device));  // of all devices of the kind, not of a run's alone
    add(check_models(backend, device));
    add(measure_speed(backend, device));
  }
  if (thoroughness == Thoroughness::kFull) {
    add(check_each_kernel(backend, device, Extent::kSizesOfModels));
    add(check_others(backend, device));
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
  return join_text("device ", device::backend_of(device).description(device), "\nkernels ", backend.name, " (",
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
