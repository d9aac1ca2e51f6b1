// SPDX-License-Identifier: Apache-2.0
#pragma once
// One line of what the doctor found.

#include <exception>
#include <functional>
#include <string>

namespace tandem::doctor {

struct Check {
  std::string name;    ///< such as "kernel row.rope" or "qwen2 float32: training"
  bool passed = true;
  std::string detail;  ///< what was measured; of one that failed, what is off
};

/// Hears of each check as soon as it is done.
using Told = std::function<void(const Check&)>;

/// The check whose detail run() says; or that failed, with what it threw. Errors: as said_by.
Check judged(const std::string& name, const std::function<std::string()>& run);

/// What a check says that threw. Errors: PeerError where the device itself failed: no check after that would mean anything.
std::string said_by(const std::exception& error);

}  // namespace tandem::doctor
