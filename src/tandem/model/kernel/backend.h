// SPDX-License-Identifier: Apache-2.0
#pragma once
// The seam between a model and what computes it: one table of functions on tensors for each backend. `cpu` has kernels of our own, `aten`
// has libtorch's operators alone and runs wherever libtorch does.

#include "tandem/model/kernel/attention.h"
#include "tandem/model/kernel/expert.h"
#include "tandem/model/kernel/logit.h"
#include "tandem/model/kernel/product.h"
#include "tandem/model/kernel/row.h"
#include "tandem/model/kernel/update.h"

namespace tandem::model::kernel {

/// Threads    every function from any thread.
/// Errors     InternalError on shapes that do not fit, where nothing else is said.
struct Backend {
  const char* name;
  /// What rows are computed by: equal texts, equal bits.
  std::string (*instructions)(c10::ScalarType dtype, bool parity, at::Device device);
  ProductKernels product;
  RowKernels row;
  AttentionKernels attention;
  LogitKernels logit;
  ExpertKernels expert;
  UpdateKernels update;
};

namespace cpu {
const Backend& backend();
}
namespace aten {
const Backend& backend();
}
namespace cuda {
/// Null in a build without CUDA.
const Backend* backend();
}

namespace npu {
const Backend& backend();
}

/// "cpu", "cuda", "npu", "aten", or "auto": the device's own kernels where there are any, else aten. Errors: UserError naming the option.
const Backend& backend_named(const std::string& name, at::Device device, const std::string& option);

}  // namespace tandem::model::kernel
