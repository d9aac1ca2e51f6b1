// SPDX-License-Identifier: Apache-2.0
#include "tandem/doctor/check.h"

#include "tandem/device/fault.h"

namespace tandem::doctor {

Check judged(const std::string& name, const std::function<std::string()>& run) {
  try {
    return {name, true, run()};
  } catch (const std::exception& e) {
    return {name, false, said_by(e)};
  }
}

std::string said_by(const std::exception& error) {
  if (dynamic_cast<const device::DeviceFailed*>(&error)) throw PeerError(error.what());
  if (const std::optional<std::string> fault = device::fault_of(error)) throw PeerError(*fault);
  return device::without_backtrace(error);
}

}  // namespace tandem::doctor
