// SPDX-License-Identifier: Apache-2.0
#include "tandem/doctor/check.h"

#include "tandem/device/fault.h"

namespace tandem::doctor {

std::string said_by(const std::exception& error) {
  if (dynamic_cast<const device::DeviceFailed*>(&error)) throw PeerError(error.what());
  if (const std::optional<std::string> fault = device::fault_of(error)) throw PeerError(*fault);
  return device::without_backtrace(error);
}

}  // namespace tandem::doctor
