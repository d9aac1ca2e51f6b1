// SPDX-License-Identifier: Apache-2.0
// The table of this folder.
#include "tandem/model/kernel/backend.h"

#include <ATen/TensorOperators.h>
#include <ATen/Version.h>
#include <ATen/ops/exp.h>

#include "tandem/base/check.h"
#include "tandem/device/device.h"
#include "tandem/model/kernel/aten/aten.h"

namespace tandem::model::kernel::aten {

at::Tensor in_float(const at::Tensor& t) { return t.to(at::kFloat); }

at::Tensor logistic(const at::Tensor& x) { return 1 / (1 + at::exp(-x)); }

at::Tensor moved(const at::Tensor& host, const at::Tensor& like) { return host.to(like.device(), /*non_blocking=*/true); }

namespace {

std::string instructions(c10::ScalarType, bool, at::Device device) {
  return join_text("aten, ", device.is_cpu() ? at::get_cpu_capability() : device::backend_of(device).description(device));
}

}  // namespace

const Backend& backend() {
  static const Backend kBackend{.name = "aten",
                                .instructions = instructions,
                                .product = kProductKernels,
                                .row = kRowKernels,
                                .attention = kAttentionKernels,
                                .logit = kLogitKernels,
                                .expert = kExpertKernels,
                                .update = kUpdateKernels};
  return kBackend;
}

}  // namespace tandem::model::kernel::aten
