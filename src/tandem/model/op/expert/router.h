// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which experts a token goes to, and with what weight.
//
// T tokens, H hidden, E experts, k experts per token.

#include <ATen/core/Tensor.h>

#include "tandem/model/op/function.h"

namespace tandem::model::op {

/// Losses that a router adds to the backward pass, and where their sums go.
struct RouterLoss {
  kernel::RouterLossTerms terms;
  double* z_sum = nullptr;        ///< += what z multiplies
  double* balance_sum = nullptr;  ///< += what balance multiplies
};

struct Router {
  Parameter weight_EH;
  at::Tensor bias_E;  ///< added to the scores for the choice alone; may be undefined
  kernel::RouterShape shape;
  RouterLoss loss = {};
};

struct Routing {
  at::Tensor experts_Tk;  ///< int64, best first
  at::Tensor weights_Tk;  ///< fp32; carries the gradient
};

/// Scores of x weight^T in fp32, and the best experts by score plus bias: DeepSeek-AI, DeepSeek-V3, eq. 12-16; without groups,
/// sigmoid and bias Qwen3-MoE's. `chosen` (int64 [T,k], may be undefined) replaces the choice; the weights are still this
/// router's.
Routing route(const Kernels& k, const at::Tensor& x_TH, const Router& router, const at::Tensor& chosen_Tk);

}  // namespace tandem::model::op
