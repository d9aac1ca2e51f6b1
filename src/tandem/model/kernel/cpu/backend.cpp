// SPDX-License-Identifier: Apache-2.0
// The table of this folder.
#include "tandem/model/kernel/backend.h"

#include "tandem/base/check.h"
#include "tandem/model/kernel/cpu/attention.h"
#include "tandem/model/kernel/cpu/product/brgemm.h"
#include "tandem/model/kernel/cpu/expert.h"
#include "tandem/model/kernel/cpu/product/gemm.h"
#include "tandem/model/kernel/cpu/product/grouped.h"
#include "tandem/model/kernel/cpu/logit.h"
#include "tandem/model/kernel/cpu/product/packed.h"
#include "tandem/model/kernel/cpu/row.h"
#include "tandem/model/kernel/cpu/update.h"

namespace tandem::model::kernel::cpu {
namespace {

std::string instructions(c10::ScalarType dtype, bool parity, at::Device) {
  return join_text(rows().isa, dtype == at::kBFloat16 && !parity && brgemm_available() ? ", attention by brgemm" : "");
}

std::shared_ptr<const PackedPlan> plan_packed(Trees trees, std::vector<TokenRun> own, at::Device) {
  return std::make_shared<PackedPlan>(std::move(trees), std::move(own));
}

}  // namespace

const Backend& backend() {
  static const Backend kBackend{
      .name = "cpu",
      .instructions = instructions,
      .product = {can_compute, plain_choice, choices, measured_choice, forward, forward_float, input_grad, weight_grad, grouped_forward,
                  grouped_input_grad, grouped_weight_grad, pack_weight, pack_head, packed_product},
      .row = kRowKernels,
      .attention = {plan_packed, packed_attention, packed_attention_by_row, packed_attention_backward, cache_shape, kLaneTokens,
                    [](at::DeviceType) { return kLaneTokens; }, plan_paged, nullptr, nullptr, paged_attention},
      .logit = kLogitKernels,
      .expert = kExpertKernels,
      .update = kUpdateKernels};
  return kBackend;
}

}  // namespace tandem::model::kernel::cpu
