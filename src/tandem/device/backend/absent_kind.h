// SPDX-License-Identifier: Apache-2.0
#pragma once
// The table of a kind of device that a build does not have.

#include "tandem/base/check.h"
#include "tandem/device/device.h"

namespace tandem::device {

/// A build without the backend that `kMaker` names.
template <const char* kName, const char* kMaker>
constexpr Backend absent_kind(at::DeviceType type) {
  constexpr auto* kExpected = "scripts/setup and scripts/build on the machine with the device, or cpu";
  return {kName,
          type,
          [] { return 0; },
          [] { return std::pair(join_text("this build has no ", kMaker, " backend"), std::string(kExpected)); },
          [](at::Device) { TANDEM_CHECK(false, "there is no ", kName); },
          [](at::Device) {},
          [](at::Device) { return std::string(); },
          [](at::Device) { return std::string(); },
          [](at::Device, int64_t) -> std::unique_ptr<Memory> { TANDEM_CHECK(false, "there is no ", kName); },
          [](at::Device) { return std::unique_ptr<Graphs>(); }};
}

}  // namespace tandem::device
