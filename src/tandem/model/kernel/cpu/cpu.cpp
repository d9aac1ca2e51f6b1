// SPDX-License-Identifier: Apache-2.0
// The table of this folder.
#include "tandem/model/kernel/cpu/cpu.h"

#include "tandem/base/check.h"
#include "tandem/model/kernel/cpu/product/brgemm.h"
#include "tandem/model/kernel/cpu/product/gemm.h"
#include "tandem/model/kernel/cpu/product/grouped.h"
#include "tandem/model/kernel/cpu/product/packed.h"

namespace tandem::model::kernel::cpu {
namespace {

std::string instructions(c10::ScalarType dtype, bool parity, at::Device) {
  return join_text(rows().isa, dtype == at::kBFloat16 && !parity && brgemm_available() ? ", attention by brgemm" : "");
}

}  // namespace

const Backend& backend() {
  static const Backend kBackend{
      .name = "cpu",
      .instructions = instructions,
      .product = {can_compute, plain_choice, choices, measured_choice, forward, forward_float, input_grad, weight_grad, grouped_forward,
                  grouped_input_grad, grouped_weight_grad, pack_weight, pack_head, packed_product},
      .row = kRowKernels,
      .attention = kAttentionKernels,
      .logit = kLogitKernels,
      .expert = kExpertKernels,
      .update = kUpdateKernels};
  return kBackend;
}

}  // namespace tandem::model::kernel::cpu
