// SPDX-License-Identifier: Apache-2.0
#pragma once
// One line of what the doctor found.

#include <string>

namespace tandem::doctor {

struct Check {
  std::string name;    ///< such as "kernel row.rope" or "qwen2 float32: training"
  bool passed = true;
  std::string detail;  ///< what was measured; of one that failed, what is off
};

}  // namespace tandem::doctor
