// SPDX-License-Identifier: Apache-2.0
#pragma once
// What inputs.txt keeps of a function that the program around a run gave it, and no recipe names.

#include <string>

namespace tandem::runtime {

struct HostFunction {
  std::string option;  ///< what it stands for: reward, advantage or loss
  std::string name;
  std::string file;    ///< of its source; "" where there is none, as in a notebook
};

}  // namespace tandem::runtime
