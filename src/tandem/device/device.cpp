// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/device.h"

#include <array>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/device/backend/fake/trouble.h"

namespace tandem::device {
namespace {

const std::array kBackends = {&cpu::backend, &cuda::backend, &npu::backend, &fake::backend};

// The processor is what remains, and a fake device is asked for by its name, unless a test says otherwise.
bool is_taken_by_auto(const Backend& b) { return b.type != at::kCPU && (&b != &fake::backend() || fake::is_found_by_auto()); }

}  // namespace

const Backend& backend_of(at::DeviceType type) {
  if (type == at::kCPU) return cpu::backend();
  if (type == at::kCUDA) return cuda::backend();
  TANDEM_CHECK(type == at::kPrivateUse1, "no backend for devices of type ", c10::DeviceTypeName(type));
  return npu::backend().count() > 0 ? npu::backend() : fake::backend();  // libtorch has one type for both; a build has one of them
}

std::string lone_device(const std::string& name) {
  for (const auto backend : kBackends) {
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
    for (const auto backend : kBackends)
      if (is_taken_by_auto(backend()) && backend().count() >= ranks_on_machine)
        return device_named(backend().name, option, rank_on_machine, ranks_on_machine);
    return at::kCPU;  // also where there are fewer devices than ranks
  }
  for (const auto backend : kBackends) {
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
  throw UserError(option, join_text("is ", name), "auto, cpu, cuda, npu or fake");
}

}  // namespace tandem::device
