// SPDX-License-Identifier: Apache-2.0
#pragma once
// Each kernel of a backend against its formula in double (naive.h), forward and backward.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tandem/model/kernel/backend.h"

namespace tandem::doctor {

/// A kernel that does not compute what it should.
struct KernelFault {
  std::string kernel;  ///< as the table has it, such as "row.rope"
  std::string what;    ///< the dtype and what is off
};

struct KernelReport {
  int64_t num_compared = 0;                ///< tensors
  std::map<std::string, double> worst;     ///< by kernel: the largest error as a share of what is allowed
  std::vector<KernelFault> faults;         ///< the first of each kernel
};

/// Small and odd, where ends of rows and blocks are; or as layers of models of 0.5B and 7B have them.
enum class Extent { kOddSizes, kSizesOfModels };

/// In float32 and bfloat16, with the inputs on the device. A kernel that throws has a fault, too. `ended` hears of each group of kernels.
void check_kernels(const model::kernel::Backend& backend, at::Device device, Extent extent,
                   const std::function<void(const KernelReport&)>& ended);

}  // namespace tandem::doctor
