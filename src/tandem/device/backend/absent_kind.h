// SPDX-License-Identifier: Apache-2.0
#pragma once
// The table of a kind of device that a build does not have.

#include "tandem/base/check.h"
#include "tandem/device/device.h"

namespace tandem::device {

/// `Kind` says its name, its type, and how to get it: {what, expected}.
template <class Kind>
constexpr Backend absent_kind() {
  return {Kind::kName,
          Kind::kType,
          [] { return 0; },
          [] { return std::pair<std::string, std::string>(Kind::kWhat, Kind::kExpected); },
          [](at::Device) { TANDEM_CHECK(false, "there is no ", Kind::kName); },
          [](at::Device) {},
          [](at::Device) { return std::string(); },
          [](at::Device) { return std::string(); },
          [](at::Device, int64_t) -> std::unique_ptr<Memory> { TANDEM_CHECK(false, "there is no ", Kind::kName); },
          [](at::Device) { return std::unique_ptr<Graphs>(); }};
}

}  // namespace tandem::device
