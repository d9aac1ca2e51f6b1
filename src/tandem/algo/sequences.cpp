// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/sequences.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "tandem/algo/aggregate.h"

namespace tandem::algo {

Sequences::Sequences(const at::Tensor& trainable_T, const at::Tensor& offsets_S)
    : mask_T_(trainable_T.to(at::kBool)),
      sequence_T_(sequence_of_token(offsets_S, trainable_T.numel())),
      num_sequences_(offsets_S.numel()) {}

at::Tensor Sequences::sum(const at::Tensor& values_T) const {
  const at::Tensor zeros_S = at::zeros({num_sequences_}, values_T.options().requires_grad(false));
  return zeros_S.index_add(0, sequence_T_, values_T.masked_fill(mask_T_.logical_not(), 0));
}

at::Tensor Sequences::num_tokens(at::ScalarType dtype) const { return sum(mask_T_.to(dtype)); }

at::Tensor Sequences::mean(const at::Tensor& values_T, double eps) const {
  const at::Tensor tokens_S = num_tokens(values_T.scalar_type());
  return sum(values_T) / (eps == 0 ? tokens_S.clamp_min(1) : tokens_S + eps);
}

at::Tensor Sequences::max(const at::Tensor& values_T, double empty) const {
  const at::Tensor start_S = at::full({num_sequences_}, empty, values_T.options().requires_grad(false));
  return start_S.scatter_reduce(0, sequence_T_, values_T.detach().masked_fill(mask_T_.logical_not(), empty), "amax");
}

}  // namespace tandem::algo
