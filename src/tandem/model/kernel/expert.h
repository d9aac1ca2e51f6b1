// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which experts a token goes to, and its rows' way there and back.
//
// T tokens, E experts, k experts per token, S = T k rows by expert, W columns.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tandem/model/kernel/product.h"

namespace tandem::model::kernel {

struct RouterShape {
  int64_t num_experts, experts_per_token;
  int64_t num_groups = 1, top_groups = 1;  ///< only experts of the best groups are eligible; a group counts its two best
  bool sigmoid = false;                    ///< scores; else softmax
  bool normalize = false;                  ///< the chosen weights to sum 1
  float scaling = 1;                       ///< of the weights, after that
};

struct Routed {
  at::Tensor scores_TE;   ///< fp32
  at::Tensor experts_Tk;  ///< int64, best first; of equals the lower one
  at::Tensor weights_Tk;  ///< fp32
};

/// Losses that a router adds, over the tokens that count. Gradients alone: the forward pass is unchanged.
struct RouterLossTerms {
  float z = 0;           ///< times the square of log sum exp(logits): Zoph et al., ST-MoE, eq. 5
  float balance = 0;     ///< times sum over e of load[e] * p[e], p the scores as shares: DeepSeek-AI, DeepSeek-V3, eq. 17-20
  at::Tensor load_E;     ///< fp32; for balance
  at::Tensor counted_T;  ///< bool; undefined: every token counts

  bool any() const { return z > 0 || balance > 0; }
};
/// What z and balance multiply, summed over the tokens.
struct RouterLossSums {
  double z = 0, balance = 0;
};

/// What the backward pass of a router reads. logits are undefined where there are no losses.
struct RouterGrad {
  at::Tensor d_weights_Tk, scores_TE, experts_Tk, logits_TE;
};

/// Rows by expert, in the order of tokens inside each.
struct Sorted {
  ExpertRows rows;
  at::Tensor choice_S;  ///< int64, of each row: token * k + choice
  at::Tensor token_S;   ///< int64
  at::Tensor row_N;     ///< int64 [T * k]: the row of each choice
};

struct ExpertKernels {
  /// DeepSeek-AI, DeepSeek-V3, eq. 12-16; without groups, sigmoid and bias (may be undefined) Qwen3-MoE's. `chosen` (int64 [T,k], may be
  /// undefined) replaces the choice. Errors: InternalError for one that is no expert.
  Routed (*route)(const at::Tensor& logits_TE, const at::Tensor& bias_E, const RouterShape& shape, const at::Tensor& chosen_Tk);
  /// d_logits[T,E], fp32; adds to the sums.
  at::Tensor (*route_backward)(const RouterGrad& in, const RouterShape& shape, const RouterLossTerms& loss, RouterLossSums& sums);

  Sorted (*sort)(const at::Tensor& experts_Tk, int64_t num_experts);
  /// [T,W]: each token the sum of its k rows in the order of its choice, in fp32, rounded once.
  at::Tensor (*combine)(const at::Tensor& rows_SW, const at::Tensor& row_N, int64_t experts_per_token);
};

}  // namespace tandem::model::kernel
