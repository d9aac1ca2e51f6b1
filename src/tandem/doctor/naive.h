// SPDX-License-Identifier: Apache-2.0
#pragma once
// What kernels compute, as the formula says it: in double on the host, differentiable by libtorch, slow. No kernel is used here.
//
// Shapes as in model/kernel/*.h.

#include <ATen/core/Tensor.h>

#include "tandem/model/kernel/backend.h"

namespace tandem::doctor::naive {

/// x / sqrt(mean x^2 + eps) * weight over the last dimension: Zhang and Sennrich, Root Mean Square Layer Normalization.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
/// The query and key heads of rows normed by the first D of `norms` or the others.
at::Tensor head_norm(const at::Tensor& qkv_TW, const at::Tensor& norms_2D, double eps, const model::kernel::AttentionShape& shape);
/// Query and key heads turned by their positions: Su et al., RoFormer.
at::Tensor rope(const at::Tensor& qkv_TW, const at::Tensor& bias_W, const model::kernel::Rotation& rotation);
/// Shazeer, GLU Variants Improve Transformer.
at::Tensor swiglu(const at::Tensor& gate_up_T2F);
/// Causal attention: query i sees the keys that row i of `sees` marks. q [O, heads D], keys and values [T, kv heads D].
at::Tensor attention(const model::kernel::AttentionRows& in, const at::Tensor& sees_OT, const model::kernel::AttentionShape& shape);
/// Which of T tokens each of T sees.
at::Tensor sees(const model::kernel::Trees& trees, int64_t num_tokens);
/// log softmax(logits / temperature), [R,V].
at::Tensor log_probabilities(const at::Tensor& logits_RV, double temperature);
/// Each expert's rows times its weight.
at::Tensor grouped(const at::Tensor& x_SK, const at::Tensor& w_ENK, const model::kernel::ExpertRows& rows);
/// Scores of experts, and the weights of the chosen ones.
at::Tensor scores(const at::Tensor& logits_TE, const model::kernel::RouterShape& shape);
at::Tensor chosen_weights(const at::Tensor& scores_TE, const at::Tensor& experts_Tk, const model::kernel::RouterShape& shape);

}  // namespace tandem::doctor::naive
