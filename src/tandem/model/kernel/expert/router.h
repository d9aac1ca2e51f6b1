// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which experts a token goes to, and with what weight.
//
// T tokens, H hidden, E experts, k experts per token.

#include <ATen/core/Tensor.h>

#include "tandem/model/kernel/function.h"

namespace tandem::model::kernel {

struct RouterShape {
  int64_t num_experts, experts_per_token;
  int64_t num_groups = 1, top_groups = 1;  ///< only experts of the best groups are eligible; a group counts its two best
  bool sigmoid = false;                    ///< scores; else softmax
  bool normalize = false;                  ///< the chosen weights to sum 1
  float scaling = 1;                       ///< of the weights, after that
};

/// Losses that a router adds to the backward pass, over the tokens that count. Gradients alone: the forward pass is unchanged.
struct RouterLoss {
  float z = 0;            ///< times the square of log sum exp(logits): Zoph et al., ST-MoE, eq. 5
  float balance = 0;      ///< times sum over e of load[e] * p[e], p the scores as shares: DeepSeek-AI, DeepSeek-V3, eq. 17-20
  at::Tensor load_E;      ///< fp32; for balance
  at::Tensor counted_T;   ///< bool; undefined: every token counts
  double* z_sum = nullptr;        ///< += what z multiplies
  double* balance_sum = nullptr;  ///< += what balance multiplies

  bool any() const { return z > 0 || balance > 0; }
};

struct Router {
  Parameter weight_EH;
  at::Tensor bias_E;  ///< added to the scores for the choice alone; may be undefined
  RouterShape shape;
  RouterLoss loss = {};
};

struct Routing {
  at::Tensor experts_Tk;  ///< int64, best first
  at::Tensor weights_Tk;  ///< fp32; carries the gradient
};

/// Scores of x weight^T in fp32, and the best experts by score plus bias: DeepSeek-AI, DeepSeek-V3, eq. 12-16; without groups,
/// sigmoid and bias Qwen3-MoE's. `chosen` (int64 [T,k], may be undefined) replaces the choice; the weights are still this
/// router's.
Routing route(const Gemm& gemm, const at::Tensor& x_TH, const Router& router, const at::Tensor& chosen_Tk);

}  // namespace tandem::model::kernel
