// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/device.h"

#include <vector>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/device/process.h"

namespace tandem::device {
namespace {

// The last may be one that a program added.
std::vector<const Backend& (*)()>& backends() {
  static std::vector<const Backend& (*)()> all = {&cpu::backend, &cuda::backend, &npu::backend};
  return all;
}

// The processor is what remains.
bool is_taken_by_auto(const Backend& b) { return b.type != at::kCPU && (!b.is_taken_by_auto || b.is_taken_by_auto()); }

}  // namespace

void add_backend(const Backend& (*backend)()) {
  backends().push_back(backend);
  device_names().emplace_back(backend().name);
}

const Backend& backend_of(at::DeviceType type) {
  if (type == at::kCPU) return cpu::backend();
  if (type == at::kCUDA) return cuda::backend();
  TANDEM_CHECK(type == at::kPrivateUse1, "no backend for devices of type ", c10::DeviceTypeName(type));
  // Libtorch has one type for Ascend and for an added kind; a process has one of them.
  return npu::backend().count() > 0 ? npu::backend() : backends().back()();
}

std::string lone_device(const std::string& name) {
  for (const auto backend : backends()) {
    const Backend& b = backend();
    if (name == "auto" ? !is_taken_by_auto(b) : name != b.name) continue;
    if (const int count = b.type == at::kCPU ? 0 : b.count(); count > 0) return count == 1 ? b.identity(at::Device(b.type, 0)) : "";
  }
  return "";
}

std::shared_ptr<void> pinned(at::Device device, void* memory, size_t bytes) {
  const Backend& backend = backend_of(device);
  if (!backend.pin || !backend.pin(memory, bytes)) return nullptr;
  return {memory, backend.unpin};
}

at::Device device_named(const std::string& name, const std::string& option, int rank_on_machine, int ranks_on_machine) {
  if (name == "auto") {
    for (const auto backend : backends())
      if (is_taken_by_auto(backend()) && backend().count() >= ranks_on_machine)
        return device_named(backend().name, option, rank_on_machine, ranks_on_machine);
    return at::kCPU;  // also where there are fewer devices than ranks
  }
  for (const auto backend : backends()) {
    const Backend& b = backend();
    if (name != b.name) continue;
    if (b.type == at::kCPU) return at::kCPU;
    const int count = b.count();
    if (count == 0) {
      const auto [what, expected] = b.missing();
      throw UserError(option, join_text("is ", name, ", and ", what), expected);
    }
    if (ranks_on_machine > count)
      throw UserError(option, join_text("is ", name, ": this machine has ", count, " of them for its ", ranks_on_machine, " ranks"),
                      "one device for each rank");
    return at::Device(b.type, static_cast<at::DeviceIndex>(rank_on_machine));
  }
  std::string names;
  for (const std::string& one : device_names())
    names += (names.empty() ? "" : one == device_names().back() ? " or " : ", ") + one;
  throw UserError(option, join_text("is ", name), names);
}

}  // namespace tandem::device
