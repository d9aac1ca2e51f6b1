// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/aggregate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>

#include "tandem/base/check.h"

namespace tandem::algo {
namespace {
constexpr double kTokenEps = 1e-8;  // of the reference (verl's masked mean); it keeps an empty scope finite
}

at::Tensor sequence_of_token(const at::Tensor& offsets_S, int64_t num_tokens) {
  const at::Tensor position_T = at::arange(num_tokens, offsets_S.options());
  return at::searchsorted(offsets_S, position_T, /*out_int32=*/false, /*right=*/true) - 1;
}

at::Tensor aggregate(const at::Tensor& values_T, const LossScope& scope, const Algorithm& algorithm) {
  const at::Tensor mask_T = scope.trainable_T.to(at::kBool);
  const at::Tensor kept_T = values_T.masked_fill(mask_T.logical_not(), 0);
  switch (algorithm.aggregation) {
    case Aggregation::kTokenSum: return kept_T.sum();
    case Aggregation::kTokenMean: return kept_T.sum() / scope.global_tokens;
    case Aggregation::kSequenceMeanTokenSum: return kept_T.sum() / scope.global_sequences;
    case Aggregation::kSequenceMeanTokenSumNorm: return kept_T.sum() / (scope.global_sequences * algorithm.scale_tokens);
    case Aggregation::kSequenceMeanTokenMean: break;
  }
  const at::Tensor sequence_T = sequence_of_token(scope.offsets_S, values_T.numel());
  at::Tensor tokens_S = at::zeros({scope.offsets_S.numel()}, values_T.options().requires_grad(false));
  tokens_S.index_add_(0, sequence_T, mask_T.to(values_T.scalar_type()));
  // A weight per token instead of a sum per row: one pass, and the same rounding for every row.
  const at::Tensor weight_T = (tokens_S + kTokenEps).reciprocal().index_select(0, sequence_T);
  return (kept_T * weight_T).sum() / scope.global_sequences;
}

}  // namespace tandem::algo
