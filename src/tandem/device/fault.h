// SPDX-License-Identifier: Apache-2.0
#pragma once
// What libtorch throws where a device failed or memory was short, said as a failure of the machine and not as a bug.

#include <c10/core/Device.h>

#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "tandem/base/error.h"

namespace tandem::device {

/// What failed and what would help, where `error` is libtorch's of a device, or of memory that is not there; nullopt for any other.
std::optional<std::string> fault_of(const std::exception& error);

/// A device that was waited for failed; who waited is not named yet.
class DeviceFailed : public PeerError {
 public:
  using PeerError::PeerError;
};

/// Runs `work`. Errors: PeerError `WHO: WHAT (WHAT WOULD HELP)` in place of DeviceFailed and those that fault_of knows; others as they are.
void with_faults_named(const std::string& who, const std::function<void()>& work);

/// The first line of what libtorch or anybody else says.
std::string without_backtrace(const std::exception& error);

/// Of a device that answered `what`.
DeviceFailed device_failed(at::Device device, const std::string& what);

}  // namespace tandem::device
