// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/fault.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <new>
#include <string_view>

#include "tandem/base/check.h"

namespace tandem::device {
namespace {

constexpr auto kNeedsLess = "a smaller batch, train.recompute, or fewer running sequences need less";
constexpr auto kIsProved = "`tandem doctor --device` proves a device; a run goes on from its last checkpoint with --resume";

// How the libraries of devices begin what they say, where they do not throw libtorch's own type.
constexpr std::array<std::string_view, 6> kOfDevices = {"CUDA error", "CUDA driver error", "CUBLAS_STATUS", "CUDNN_STATUS", "NCCL error",
                                                        "NPU function error"};

bool says(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// Libtorch's advice about settings of its own follows after what was asked for, and what there is.
std::string short_of(const std::string& text) { return text.substr(0, std::min(text.find(" Process "), text.find(" Including "))); }

}  // namespace

std::string without_backtrace(const std::exception& error) {
  const auto* of_libtorch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_libtorch ? of_libtorch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

std::optional<std::string> fault_of(const std::exception& error) {
  const std::string text = without_backtrace(error);
  // Libtorch says it in words where its own type is lost on the way, as through a rethrow on another thread.
  if (dynamic_cast<const std::bad_alloc*>(&error) || says(error.what(), "DefaultCPUAllocator: "))
    return join_text("memory: there is not enough (", kNeedsLess, ")");
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error)) return join_text("memory: ", short_of(text), " (", kNeedsLess, ")");
  if (!dynamic_cast<const c10::Error*>(&error)) return std::nullopt;
  const bool is_device = dynamic_cast<const c10::AcceleratorError*>(&error) ||
                         std::ranges::any_of(kOfDevices, [&](std::string_view words) { return says(text, words); });
  if (!is_device) return std::nullopt;
  return join_text("the device failed: ", text, " (", kIsProved, ")");
}

void with_faults_named(const std::string& who, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& e) {
    const std::optional<std::string> fault = dynamic_cast<const DeviceFailed*>(&e) ? std::optional<std::string>(e.what()) : fault_of(e);
    if (!fault) throw;
    throw PeerError(who.empty() ? *fault : join_text(who, ": ", *fault));
  }
}

DeviceFailed device_failed(at::Device device, const std::string& what) {
  return DeviceFailed(join_text("the device failed: ", device.str(), ": ", what, " (", kIsProved, ")"));
}

}  // namespace tandem::device
