// SPDX-License-Identifier: Apache-2.0
#include "tandem/doctor/machine_report.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <torch/version.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/launch.h"
#include "tandem/comm/network.h"
#include "tandem/device/device.h"
#include "tandem/device/process.h"
#include "tandem/model/kernel/backend.h"

namespace tandem::doctor {

using nlohmann::json;

namespace {

/// The value of the first line `key : value` of a file of /proc; "" without one.
std::string proc_value(const char* path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const size_t at = line.find_first_not_of(" \t", line.find(':') + 1);
    return at == std::string::npos ? "" : line.substr(at);
  }
  return "";
}

int64_t memory_bytes(const std::string& key) {
  std::istringstream text(proc_value("/proc/meminfo", key));
  int64_t kib = 0;
  text >> kib;
  return kib * 1024;
}

/// NVIDIA devices that the kernel shows, whether or not this build can use them.
int64_t num_gpus() {
  int64_t count = 0;
  while (std::filesystem::exists("/dev/nvidia" + std::to_string(count))) ++count;
  return count;
}

/// Those that this build can use: kind, name and memory of each.
json devices() {
  json all = json::array();
  for (const device::Backend* backend : {&device::cuda::backend(), &device::npu::backend()})
    for (int i = 0; i < backend->count(); ++i)
      all.push_back(join_text(backend->name, ": ", backend->description(at::Device(backend->type, static_cast<at::DeviceIndex>(i)))));
  return all;
}

std::string blas_name() {
  if (at::hasMKL()) return "MKL";
  return at::hasLAPACK() ? "BLAS with LAPACK" : "BLAS";
}

/// Interfaces, each with its address and subnet.
json network_report() {
  json all = json::array();
  for (const comm::Address& a : comm::own_addresses())
    if (!a.is_loopback) all.push_back({{"interface", a.interface}, {"address", join_text(a.text, "/", a.prefix_bits)}});
  return all;
}

std::string network_text(const json& report) {
  std::string text;
  for (const json& each : report.at("network"))
    text += (text.empty() ? "" : ", ") + each.at("interface").get<std::string>() + " " + each.at("address").get<std::string>();
  const auto chosen = report.at("interface").get<std::string>();
  return (text.empty() ? "no address but the loopback" : text) + (chosen.empty() ? "" : "; ranks meet over " + chosen);
}

}  // namespace

json machine_report(const std::string& code_guard) {
  json report = {{"cpu", proc_value("/proc/cpuinfo", "model name")},
                 {"cores", device::num_cores()},
                 {"memory_bytes", memory_bytes("MemTotal")},
                 {"memory_available_bytes", memory_bytes("MemAvailable")},
                 {"isa", model::kernel::cpu::backend().instructions(c10::kFloat, false, at::kCPU)},
                 {"libtorch", TORCH_VERSION},
                 {"blas", blas_name()},
                 {"onednn", at::hasMKLDNN()},
                 {"mpi", comm::mpi_available()},
                 {"network", network_report()},
                 {"interface", comm::interface_choice()},
                 {"c10d", comm::c10d_library()},
                 {"code_guard", code_guard},
                 {"devices", devices()},
                 {"gpus", num_gpus()}};
  json missing = json::object();
  if (!comm::mpi_available())
    missing["mpi"] = "ranks of this machine alone (--ranks); for several machines: scripts/setup, then cmake -DTANDEM_MPI=ON";
  if (comm::c10d_library().empty())
    missing["c10d"] = "none between devices; scripts/setup and scripts/build on a machine with devices bring them (docs/design/c10d.md)";
  if (!at::hasMKLDNN()) missing["onednn"] = "matrix products are slow without it; install the torch wheel of scripts/setup";
  if (devices().empty()) {
    const auto [what, expected] = device::cuda::backend().missing();
    missing["device"] = what + "; expected " + expected;
  }
  try {
    (void)comm::chosen(comm::own_addresses(), comm::interface_choice(), comm::kInterfaceVariable);
  } catch (const UserError& e) {
    missing["network"] = e.what();
  }
  report["missing"] = std::move(missing);
  return report;
}

std::string machine_text(const json& report) {
  std::ostringstream out;
  const auto gib = [&](const char* key) { return std::to_string(report.at(key).get<int64_t>() >> 30) + " GiB"; };
  const auto c10d = report.at("c10d").get<std::string>();
  const auto yes = [&](const char* key) { return report.at(key).get<bool>() ? "yes" : "no"; };
  out << "cpu       " << report.at("cpu").get<std::string>() << "\n"
      << "cores     " << report.at("cores") << "\n"
      << "memory    " << gib("memory_bytes") << ", " << gib("memory_available_bytes") << " available\n"
      << "kernels   " << report.at("isa").get<std::string>() << "\n"
      << "libtorch  " << report.at("libtorch").get<std::string>() << ", " << report.at("blas").get<std::string>()
      << ", oneDNN " << yes("onednn") << "\n"
      << "mpi       " << yes("mpi") << "\n"
      << "network   " << network_text(report) << "\n"
      << "c10d      " << (c10d.empty() ? "no" : c10d) << "\n"
      << "programs  " << report.at("code_guard").get<std::string>() << "\n"
      << "devices   " << report.at("gpus") << " of NVIDIA seen\n";
  for (const json& device : report.at("devices")) out << "device    " << device.get<std::string>() << "\n";
  for (const auto& [name, remedy] : report.at("missing").items()) out << "missing   " << name << ": " << remedy.get<std::string>() << "\n";
  return out.str();
}

}  // namespace tandem::doctor
